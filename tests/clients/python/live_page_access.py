"""Checks the live page with axe-core in light and dark, and at the width of a phone. Saves a picture of each view.

Arguments: the port, the operator's password, the path of axe-core, and a directory for the pictures.
"""

import sys

from playwright.sync_api import expect

from page_driver import live_page

VIEWS = {
    "rules": "rules",
    "rule": "rules?rule=a-user",
    "explain": "explain?op=api%3Da+user%3Dann",
    "actor": "actor?q=user%3Dann",
    "top": "top?rule=a-user",
    "reloads": "reloads",
    "health": "health",
}
SERIOUS = ("serious", "critical")


def check(page, name):
    """Fails if axe-core finds anything serious."""
    result = page.tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    found = [
        f"{violation['id']}: {[node['target'] for node in violation['nodes']]}"
        for violation in result["violations"]
        if violation["impact"] in SERIOUS
    ]
    assert not found, f"{name}: {found}"


def visit(page, password, axe, pictures, kind):
    tab = page.tab
    page.open()
    tab.add_script_tag(path=axe)
    check(page, f"{kind}, login")
    tab.screenshot(path=f"{pictures}/{kind}-login.png")
    page.log_in("operator", password)
    page.expect_live()
    for name, view in VIEWS.items():
        page.open(view)
        expect(tab.locator("main h1")).to_be_visible()
        expect(tab.get_by_text("Loading…")).to_have_count(0)
        check(page, f"{kind}, {name}")
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= tab.viewport_size["width"], f"{kind}, {name} is {width} pixels wide"
        tab.screenshot(path=f"{pictures}/{kind}-{name}.png")
    page.open("actor?q=user%3Dann")
    tab.locator('[data-rule="a-user"]').get_by_role("button", name="Set limit").click()
    tab.get_by_text("The same as a rule, to copy").click()
    check(page, f"{kind}, dialog")
    tab.screenshot(path=f"{pictures}/{kind}-dialog.png")
    tab.keyboard.press("Escape")
    tab.locator('[data-rule="a-user"]').get_by_role("button", name="Change block").click()
    check(page, f"{kind}, dialog of a block")
    tab.screenshot(path=f"{pictures}/{kind}-block.png")
    tab.keyboard.press("Escape")
    page.open("actor")
    tab.get_by_text("Blocked actors", exact=True).click()
    expect(tab.locator("#actor-overrides tbody tr")).to_have_count(2)
    check(page, f"{kind}, blocked actors")
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= tab.viewport_size["width"], f"{kind}, blocked actors are {width} pixels wide"
    tab.screenshot(path=f"{pictures}/{kind}-blocked.png")


def main(port, password, axe, pictures):
    desktop, phone = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
    for kind, scheme, size in [("light", "light", desktop), ("dark", "dark", desktop), ("phone", "light", phone)]:
        # axe-core is not one of the page's own scripts.
        with live_page(port, color_scheme=scheme, viewport=size, bypass_csp=True) as page:
            visit(page, password, axe, pictures, kind)


main(*sys.argv[1:])
