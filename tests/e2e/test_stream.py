"""What a stream of events does to the page, in a browser, on the fake engine."""

from pathlib import Path

from tests.e2e.test_journeys import OpenPage, answered, ask


def test_what_a_stream_sends_is_swapped_in_once(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    page.add_init_script("""
      window.heard = 0; window.swaps = 0;
      const Source = window.EventSource;
      window.EventSource = class extends Source {
        addEventListener(name, ...rest) {
          if (!this[`counted ${name}`] && name !== "end") super.addEventListener(name, () => { window.heard += 1; });
          this[`counted ${name}`] = true;
          super.addEventListener(name, ...rest);
        }
      };
      document.addEventListener("htmx:sseMessage", () => { window.swaps += 1; });
    """)
    ask(page, slow, scene, "Is it swapped in once?")
    answered(page)
    assert page.evaluate("window.heard") > 8
    assert page.evaluate("window.swaps") == page.evaluate("window.heard")
