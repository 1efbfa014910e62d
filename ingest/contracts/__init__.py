"""What crosses a package border, defined once.

Every event on the log, every manifest on disk and every HTTP body between everloop's processes is a type
in this package. It imports the standard library, `msgspec` and nothing else, so that a gateway, an engine
plugin and a trainer can all afford it.

- `ids`: how identities are minted, and keyed hashes of people and conversations
- `arrays`: token ids and logprobs as packed little-endian bytes
- `turn`, `feedback`, `erasure`: the events of the log; `events` is their union and its wire form
- `tap`: what the engine plugin recorded of one call, on its way to the gateway
- `dataset`, `checkpoint`, `verdict`, `rollout`: manifests, and the states of a promotion
- `fleet`: bodies of the control process: keys, engines, policies, assignments
- `versions`: which version of its contract a value keeps
- `files`: manifests written last, digests checked on read

Invariant: a value of one of these types is well-formed. Whoever holds one does not check it again.
"""
