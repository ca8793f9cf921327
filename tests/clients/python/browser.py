"""Headless Chromium for scripts that open web pages. It reaches servers on the loopback interface only."""

import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

# Milliseconds for each step of a script, even on a busy machine
PATIENCE = 30_000


@contextmanager
def chromium():
    """Yields an empty context of the system's Chromium, as after the deletion of all cookies."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "chromium is missing; run `make test-setup` first"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            # Chromium's own sandbox does not start as root, or in many containers.
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
            timeout=PATIENCE,
        )
        context = browser.new_context()
        context.set_default_timeout(PATIENCE)
        try:
            yield context
        finally:
            browser.close()
