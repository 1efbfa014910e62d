"""The well-known patterns of a redaction: RE2 expressions, some with a check in plain Python.

A check (Luhn's digit, IBAN's remainder) says what the expression cannot. It looks at one match, of bounded length.
"""

from collections.abc import Callable

_DIGITS = frozenset(b"0123456789")
_IBAN = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
"""How many letters and digits each country's IBAN has."""


def _card(text: bytes, start: int, end: int) -> int:
    """Of groups of digits: 13 to 19, not inside a longer number, with Luhn's check digit."""
    if start and text[start - 1 : start].isdigit():
        return 0
    digits, longest = [], 0
    for place in range(start, end):
        if text[place] in _DIGITS:
            digits.append(text[place] - 48)
            if 13 <= len(digits) <= 19 and not text[place + 1 : place + 2].isdigit() and _luhn(digits):
                longest = place + 1
    return longest


def _luhn(digits: list[int]) -> bool:
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _iban(text: bytes, start: int, end: int) -> int:
    """As many letters and digits as the country's numbers have, with a remainder of 1."""
    length = _IBAN[text[start : start + 2].upper().decode()]
    compact = b""
    for place in range(start, end):
        if text[place] != 32:
            compact += text[place : place + 1].upper()
            if len(compact) == length:
                if text[place + 1 : place + 2].isalnum():
                    return 0
                number = "".join(str(int(chr(letter), 36)) for letter in compact[4:] + compact[:4])
                return place + 1 if int(number) % 97 == 1 else 0
    return 0


def _phone(text: bytes, start: int, end: int) -> int:
    return end if 8 <= sum(text[place] in _DIGITS for place in range(start, end)) <= 15 else 0


PATTERNS: dict[str, tuple[str, Callable[[bytes, int, int], int] | None]] = {
    "email": (r"[\pL\pN._%+'\-]+@(?:[\pL\pN\-]+\.)+\pL{2,}", None),
    "credit_card": (
        r"[2-6][0-9]{3}(?:[ \-]?[0-9]{4}){2,3}(?:[ \-]?[0-9]{1,4})?|3[47][0-9]{2}[ \-]?[0-9]{6}[ \-]?[0-9]{5}",
        _card,
    ),
    "iban": (rf"(?i)\b(?:{'|'.join(_IBAN)})[0-9]{{2}}(?: ?[A-Z0-9]){{11,29}}", _iban),
    "phone": (
        r"(?:\+|\b00)[0-9](?:[ ()./\-]{0,2}[0-9]){6,14}\b"
        r"|\(?\b[0-9]{3}\)?[ .\-][0-9]{3}[ .\-][0-9]{4}\b"
        r"|\b0[0-9]{2,4}[ /\-][0-9]{2,4}(?:[ \-]?[0-9]{2,4}){1,3}\b",
        _phone,
    ),
    "secret": (
        r"\b(?:sk|el|rk|pk)[-_][A-Za-z0-9_\-]{20,}"  # OpenAI, Anthropic, everloop, Stripe
        r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
        r"|\bAIza[0-9A-Za-z_\-]{35}"  # Google
        r"|\bgh[oprsu]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_\-]{20,}"
        r"|\bxox[a-z]-[A-Za-z0-9\-]{10,}|\bhf_[A-Za-z0-9]{30,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_\-]{50,}"
        r"|\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"  # JSON web tokens
        r"|(?i:\bbearer) +[A-Za-z0-9._~+/=\-]{20,}"
        r"|://[^/\s:@]+:[^/\s@]+@"  # a password in a URL
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        None,
    ),
}
"""Well-known patterns: an expression, and a check that says where its match really ends, or 0 where it is none.

Of telephone numbers: those in international form, in North America's, and with a leading 0 and a separator."""
