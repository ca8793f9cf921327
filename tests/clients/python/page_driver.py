"""The live page in Chromium: opens it, logs in, and fails on every console error and refused resource."""

from contextlib import contextmanager

from playwright.sync_api import expect

from browser import PATIENCE, chromium

expect.set_options(timeout=PATIENCE)

# Text that would run a script if it became markup
MARKUP = "<img src=x onerror=alert(1)>"


class LivePage:
    """A tab with the page of the server on this port."""

    def __init__(self, context, port):
        self.tab = context.new_page()
        self.address = f"http://127.0.0.1:{port}/ui/"
        self.errors = []
        self.tab.on("console", self._on_console)
        self.tab.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        self.tab.on("dialog", self._on_dialog)

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog):
        self.errors.append(f"script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, view="rules"):
        """Opens a view, such as `actor?q=user%3Dann`."""
        self.tab.goto(f"{self.address}#/{view}")

    def log_in(self, user, password):
        """Fills in the form. A server with only a password asks for no user."""
        if user:
            self.tab.fill("#login-user", user)
        self.tab.fill("#login-password", password)
        self.tab.click("#login-submit")

    def expect_live(self):
        expect(self.tab.locator(".stream")).to_have_text("Live")

    def row(self, rule):
        """Returns the row of a rule in the list of rules."""
        return self.tab.locator("table.rules tbody tr", has=self.tab.get_by_role("link", name=rule, exact=True))

    def titles(self):
        """Returns the titles of the views that the user may see."""
        return [link.get_attribute("data-title") for link in self.tab.locator("#nav a").all()]

    def check_errors(self, *allowed):
        """Fails unless each error on the console contains one of these texts."""
        wrong = [error for error in self.errors if not any(text in error for text in allowed)]
        assert not wrong, wrong
        self.errors.clear()


@contextmanager
def live_page(port, **options):
    """Yields the page in a browser without any cookies. `options` are those of a context of Playwright."""
    with chromium() as context:
        if options:
            context = context.browser.new_context(**options)
            context.set_default_timeout(PATIENCE)
        page = LivePage(context, port)
        yield page
        page.check_errors()
