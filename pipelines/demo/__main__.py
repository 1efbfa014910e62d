from pipelines.demo import main

if __name__ == "__main__":
    main()
