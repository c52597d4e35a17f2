"""Where the files that are no Python are found."""

from pathlib import Path

from core import paths


def test_what_lies_beside_the_package_goes_before_the_checkout(tmp_path: Path) -> None:
    beside, checkout = tmp_path / "web" / "static", tmp_path / "static"
    checkout.mkdir()
    assert paths.first_of(beside, checkout) == checkout
    beside.mkdir(parents=True)
    assert paths.first_of(beside, checkout) == beside


def test_a_missing_folder_is_no_error_until_it_is_opened(tmp_path: Path) -> None:
    assert paths.first_of(tmp_path / "a", tmp_path / "b") == tmp_path / "b"


def test_the_checkout_has_all_of_them() -> None:
    for folder in (paths.STATIC, paths.TEMPLATES, paths.MIGRATIONS):
        assert folder.is_dir(), folder
