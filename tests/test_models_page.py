"""The table of models in the documentation is what the registry and the tests say."""

from models_page import PAGE, rewritten


def test_the_page_of_models_is_fresh():
    page = PAGE.read_text("utf-8")
    assert page == rewritten(page), "run: make models-page"
