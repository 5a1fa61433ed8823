"""What checks the types in signatures while the tests run: beartype, to which an int is a float as it is to mypy."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
