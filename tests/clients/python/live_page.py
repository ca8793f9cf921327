"""Uses the live page in Chromium as people do. The first argument names the scenario, and the others are its own."""

import json
import re
import sys
import time
from pathlib import Path

import redis
from playwright.sync_api import expect

from page_driver import MARKUP, LivePage, live_page

# Chromium reports the status of a refused login, and of a refused stream, on the console.
UNAUTHORIZED = "status of 401"
UNAVAILABLE = "status of 503"


def logins(port, operator, dashboard, scoped, ann):
    """Users log in and out, and see the views and actions that they have rights to."""
    with live_page(port) as page:
        tab = page.tab
        page.open()
        page.log_in("operator", "wrong")
        expect(tab.locator("#login-error")).to_have_text("The name or the password is wrong.")
        page.check_errors(UNAUTHORIZED)

        page.log_in("operator", operator)
        page.expect_live()
        [cookie] = tab.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict", cookie
        assert tab.evaluate("document.cookie") == ""
        assert set(page.titles()) >= {"Rules", "Explain", "Actor", "Reloads", "Health"}, page.titles()
        expect(page.row("b-user")).to_be_visible()
        page.open("health")
        expect(tab.locator("#health .pill")).to_have_text("Ready")
        tab.click("#logout")
        expect(tab.locator("#login-password")).to_be_visible()
        assert tab.context.cookies() == []

        page.log_in("dashboard", dashboard)
        expect(tab.locator("#read-only")).to_be_visible()
        page.open("actor?q=user%3Dann")
        expect(tab.locator("#actor-result")).to_contain_text("user=ann has all credits")
        tab.click("#actor-others summary")
        expect(tab.locator("#actor-others li")).to_have_count(2)
        expect(tab.get_by_role("button", name="Set limit")).to_have_count(0)
        tab.click("#logout")

        # The session ends on the server, as with a restart.
        page.log_in("dashboard", dashboard)
        page.expect_live()
        tab.context.clear_cookies()
        page.open("actor?q=user%3Dann")
        expect(tab.locator("#login-note")).to_contain_text("Your session has ended")
        page.check_errors(UNAUTHORIZED)

        page.log_in("scoped", scoped)
        expect(tab.locator("#login-note")).to_have_count(0)
        page.open("rules")
        expect(page.row("a-user")).to_be_visible()
        expect(tab.locator("table.rules tbody tr")).to_have_count(1)
        assert "Health" not in page.titles(), page.titles()
        page.open("reloads")
        expect(tab.locator("#reloads")).to_have_text("Only users with all rules in their scope see reloads.")
        tab.click("#logout")
        expect(tab.locator("#login-note")).to_have_count(0)

        page.log_in("ann", ann)
        page.open("rules?rule=a-user")
        expect(page.row("a-user")).to_be_visible()
        expect(tab.locator("#no-counts")).to_contain_text("Your scope has one actor")
        for hidden in ("#sum", "#only-denied", "aside .charts", "table.rules th.hits", "table.rules td.chart"):
            expect(tab.locator(hidden).first).to_be_hidden()
        expect(tab.get_by_text("Your actor was not denied in the last minute.")).to_be_visible()
        tab.click("#logout")
        page.check_errors()


def password(port, word):
    """A server with only a password asks for no name, and grants every right."""
    with live_page(port) as page:
        page.open()
        expect(page.tab.locator("#login-password")).to_be_visible()
        expect(page.tab.locator("#login-user")).to_have_count(0)
        page.log_in(None, word)
        page.expect_live()
        expect(page.tab.locator("#user")).to_have_text("default")


def read_only(port):
    """Without users and without a password, the page shows everything and changes nothing."""
    with live_page(port) as page:
        page.open("actor?q=user%3Dann")
        expect(page.tab.locator("#read-only")).to_be_visible()
        expect(page.tab.locator("#notes")).to_contain_text("Read-only: this server has neither users nor a password")
        page.tab.click("#actor-others summary")
        expect(page.tab.get_by_role("button", name="Set limit")).to_have_count(0)


def shared(port):
    """With counters in Redis, the page says which parts show this server only."""
    with live_page(port) as page:
        page.open()
        page.expect_live()
        expect(page.tab.locator("#shared")).to_contain_text("Several servers share the counters in Redis.")
        expect(page.tab.locator("#foot")).to_contain_text("counters in Redis")


def hits(port, resp):
    """Hits over RESP appear, denied ones too, and an explanation shows what is left."""
    client = redis.Redis(port=int(resp))
    with live_page(port) as page:
        page.open("rules?rule=a-user")
        page.expect_live()
        row = page.row("a-user")
        expect(row.locator(".hits")).to_contain_text("0/min")
        client.execute_command("DIVVY.HIT", "api=a", "user=ann")
        expect(row.locator(".hits")).to_contain_text("1/min")
        expect(row.locator(".denied")).to_contain_text("0/min")
        for _ in range(4):
            client.execute_command("DIVVY.HIT", "api=a", "user=ann")
        expect(row.locator(".hits")).to_contain_text("5/min")
        expect(row.locator(".denied")).to_contain_text("2/min")
        summary = re.compile(r"^Last minute: 5 hits, 2 denied, at most \d hits a second$")
        expect(row.locator("svg")).to_have_attribute("aria-label", summary)
        expect(page.tab.locator("aside .figure-chart.denied")).to_contain_text("2 in the last minute (40 %)")
        expect(page.tab.get_by_role("region", name="Denied the most").locator("tbody tr")).to_have_text("1ann2100 %")
        expect(page.tab.locator("#sum .denying")).to_have_text("1 rule denies now")
        page.tab.check("#only-denied")
        expect(page.row("b-user")).to_have_count(0)
        expect(row).to_be_visible()
        expect(page.tab.locator(".found")).to_have_text("1 rule of 3")

        page.open("top?rule=a-user")
        expect(page.tab.locator("#top-result")).to_contain_text("Denied")
        page.tab.get_by_label("Taken").check()
        expect(page.tab.locator("#top-result tbody tr")).to_have_text("1ann3100 %")

        page.open("explain?op=api%3Da+user%3Dann")
        expect(page.tab.locator("#verdict")).to_contain_text("Denied")
        matching = page.tab.locator('[data-rule="a-user"]')
        expect(matching).to_contain_text("0 / 3")
        matching.get_by_role("link", name="ann", exact=True).click()
        expect(page.tab.locator("#actor-result")).to_contain_text("denied now")

        page.open("explain?op=api%3Db+user%3Dann")
        expect(page.tab.locator("#verdict")).to_contain_text("b-user answers")
        expect(page.tab.get_by_text("a-user: api is b, but must be a")).to_be_visible()


def changes(port, resp, operator):
    """A limit that is set on the page is in force over RESP, and so are its removal and a forgotten counter."""
    client = redis.Redis(port=int(resp), username="operator", password=operator)

    def hit():
        return client.execute_command("DIVVY.HIT", "api=a", "user=ann")[0]

    with live_page(port) as page:
        tab = page.tab
        page.open("actor?q=user%3Dann")
        page.log_in("operator", operator)
        assert hit() == 1
        row = tab.locator('[data-rule="a-user"]')
        expect(row).to_contain_text("2 / 3")

        row.get_by_role("button", name="Set limit").click()
        tab.keyboard.press("Escape")
        expect(tab.locator("dialog")).to_have_count(0)
        assert hit() == 1, "a cancelled dialog changes nothing"

        row.get_by_role("button", name="Set limit").click()
        tab.fill("#limit-credits", "0")
        tab.select_option("#limit-time", "3600")
        tab.get_by_role("dialog").get_by_role("button", name="Set limit").click()
        expect(tab.locator("#toast")).to_contain_text("user=ann has a limit of 0 credits under a-user, for 1 h.")
        assert hit() == 0, "the limit denies over RESP"
        expect(row).to_contain_text("own limit")

        row.get_by_role("button", name="Remove limit").click()
        tab.get_by_role("dialog").get_by_role("button", name="Remove limit").click()
        expect(row.get_by_role("button", name="Remove limit")).to_have_count(0)
        assert hit() == 1

        row.get_by_role("button", name="Forget counter").click()
        expect(tab.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        tab.get_by_role("dialog").get_by_role("button", name="Forget counter").click()
        expect(tab.locator("#actor-result")).to_contain_text("user=ann has all credits")
        assert [hit(), hit(), hit(), hit()] == [1, 1, 1, 0]


def overrides(port, resp, operator, dashboard):
    """Blocks and allows that are set on the page are in force over RESP, and so is their removal. Their reasons are text."""
    client = redis.Redis(port=int(resp), username="operator", password=operator)

    def hit(user="ann"):
        return client.execute_command("DIVVY.HIT", "api=a", f"user={user}")[0]

    with live_page(port) as page:
        tab = page.tab
        page.open("actor?q=user%3Dann")
        page.log_in("operator", operator)
        dialog = tab.get_by_role("dialog")
        row = tab.locator('[data-rule="a-user"]')

        # Under one rule, from the list of rules with all credits
        tab.click("#actor-others summary")
        tab.get_by_role("button", name="Block under a-user").click()
        expect(tab.get_by_label("Reason")).to_be_focused()
        tab.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        assert hit() == 1, "a cancelled dialog changes nothing"
        row.get_by_role("button", name="Block under a-user").click()
        concerned = tab.get_by_label("It concerns")
        expect(concerned.locator("option:checked")).to_have_text("all rules, as user=ann")
        concerned.select_option("rule a-user")
        tab.get_by_label("It lasts").fill("2")
        tab.get_by_label("Reason").fill(MARKUP)
        dialog.get_by_role("button", name="Block").click()
        expect(tab.locator("#toast")).to_contain_text("user=ann is blocked under a-user, for 2 h.")
        assert hit() == 0, "the block denies over RESP"
        expect(row).to_contain_text("blocked for another")
        expect(row).to_contain_text(MARKUP)
        expect(row.locator("img")).to_have_count(0)
        expect(row).to_contain_text("2 / 3")
        expect(row.locator(".chip")).to_have_text("blocked")

        page.open("explain?op=api%3Da+user%3Dann")
        expect(tab.locator("#verdict")).to_contain_text("a-user denies it: the actor is blocked for another")
        expect(tab.locator("#verdict")).to_contain_text(MARKUP)
        expect(row).to_contain_text("blocked for another")
        expect(row.locator(".chip").first).to_have_text("blocked")

        page.open("rules?rule=a-user")
        tab.get_by_text("Blocked actors", exact=True).click()
        expect(tab.locator("aside .disclosed tbody tr")).to_contain_text(MARKUP)
        tab.locator("aside .disclosed").get_by_role("link", name="ann", exact=True).click()

        # A permanent one in its place
        row.get_by_role("button", name="Change block").click()
        expect(tab.get_by_label("Reason")).to_have_value(MARKUP)
        tab.get_by_label("It lasts").fill("")
        tab.get_by_label("Reason").fill("")
        dialog.get_by_role("button", name="Block").click()
        expect(row).to_contain_text("blocked until someone removes it")

        # An allow wins over it
        row.get_by_role("button", name="Allow under a-user").click()
        concerned.select_option("rule a-user")
        dialog.get_by_role("button", name="Allow").click()
        expect(row.locator(".chip")).to_have_text("allowed")
        assert [hit() for _ in range(5)] == [1] * 5
        expect(row).to_contain_text("0 / 3")
        row.get_by_role("button", name="Remove allow").click()
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        dialog.get_by_role("button", name="Remove allow").click()
        expect(row.locator(".chip")).to_have_text("blocked")
        row.get_by_role("button", name="Remove block").click()
        dialog.get_by_role("button", name="Remove block").click()
        expect(row.locator(".chip")).to_have_text("denied now")

        # Under all rules
        page.open("actor?q=user%3Deve")
        expect(tab.locator("#actor-result")).to_contain_text("user=eve has all credits")
        tab.click("#actor-others summary")
        tab.get_by_role("button", name="Block under a-user").click()
        tab.get_by_label("It concerns").select_option("all rules, as user=eve")
        tab.get_by_label("Reason").fill("stolen card")
        dialog.get_by_role("button", name="Block").click()
        expect(tab.locator("#toast")).to_contain_text("user=eve is blocked under all rules, for 1 h.")
        assert hit("eve") == 0
        expect(row).to_contain_text("under all rules, as user=eve: stolen card")
        expect(tab.locator('[data-rule="b-user"]')).to_contain_text("stolen card")
        row.get_by_role("button", name="Set limit").click()
        tab.keyboard.press("Escape")

        # A rule without a label, under which only all rules can be meant
        page.open("actor?q=page%3D%2Fa")
        tab.click("#actor-others summary")
        tab.get_by_role("button", name="Allow under rule-3").click()
        expect(tab.get_by_label("It concerns").locator("option")).to_have_text(["all rules, as page=/a"])
        tab.get_by_label("It lasts").fill("")
        dialog.get_by_role("button", name="Allow").click()
        unnamed = tab.locator('[data-rule="rule-3"]')
        expect(unnamed).to_contain_text("allowed until someone removes it, under all rules, as page=/a")
        expect(unnamed).to_contain_text("Other changes need a label.")
        unnamed.get_by_role("button", name="Remove allow").click()
        dialog.get_by_role("button", name="Remove allow").click()
        expect(tab.locator("#actor-result")).to_contain_text("page=/a has all credits")
        page.open("actor?q=user%3Deve")

        # Users without the right see it, and change nothing
        tab.click("#logout")
        page.log_in("dashboard", dashboard)
        expect(row).to_contain_text("under all rules, as user=eve: stolen card")
        expect(row.get_by_role("button")).to_have_count(0)
        page.open("actor")
        tab.get_by_text("Blocked actors", exact=True).click()
        expect(tab.locator("#actor-overrides tbody tr")).to_have_count(1)
        expect(tab.locator("#actor-overrides")).to_contain_text("stolen card")
        expect(tab.locator("#actor-overrides").get_by_role("button", name="Remove")).to_have_count(0)

        tab.click("#logout")
        page.log_in("operator", operator)
        tab.get_by_text("Blocked actors", exact=True).click()
        tab.get_by_role("button", name="Remove the block of user=eve under all rules").click()
        expect(dialog).to_contain_text("It may concern other actors, too.")
        dialog.get_by_role("button", name="Remove block").click()
        expect(tab.locator("#toast")).to_contain_text("user=eve")
        expect(tab.locator("#actor-overrides")).to_contain_text("No actor is blocked.")
        # The list may be empty for a moment while it is loaded.
        for _ in range(50):
            if hit("eve") == 1:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the block is still in force")


def reload(port, rules):
    """A changed rules file shows its difference, and a broken one its problem."""
    file = Path(rules)
    before = file.read_text()
    with live_page(port) as page:
        tab = page.tab
        page.open("rules")
        page.expect_live()
        expect(page.row("a-user")).to_contain_text("allows 3 in")
        file.write_text(before.replace("creditLimit = 3", "creditLimit = 7"))
        expect(page.row("a-user")).to_contain_text("allows 7 in")
        page.open("reloads")
        newest = tab.locator(".reload").first
        expect(newest).to_contain_text("creditLimit from 3 to 7")
        expect(newest).to_contain_text("In force")
        file.write_text(before.replace("creditLimit = 3", "creditLimits = 3"))
        expect(newest).to_contain_text("Refused")
        expect(newest).to_contain_text("unknown setting `creditLimits`")
        expect(tab.locator("#nav-reloads .mark")).to_be_visible()


def markup(port, resp, rules):
    """Markup in every text that clients and rules control is shown as text."""
    client = redis.Redis(port=int(resp))
    for _ in range(4):
        client.execute_command("DIVVY.HIT", f"path={MARKUP}", f"user={MARKUP}")
    with live_page(port) as page:
        tab = page.tab
        page.open("rules?rule=marked")
        page.expect_live()
        expect(page.row("marked").locator(".operation")).to_contain_text(MARKUP)
        expect(tab.locator("aside .comment")).to_have_text(MARKUP)
        expect(tab.get_by_role("region", name="Denied the most").locator(".actor-name")).to_have_text(MARKUP)
        tab.get_by_text("Counters", exact=True).click()
        expect(tab.locator("aside .actor-name").first).to_have_text(MARKUP)
        tab.get_by_text("This rule as text").click()
        expect(tab.locator("aside pre")).to_contain_text(f'comment = "{MARKUP}"')

        page.open("rules")
        tab.fill("#search", MARKUP)
        expect(tab.locator(".found")).to_have_text("1 rule of 2")

        page.open("explain")
        tab.fill("#operation", f'path="{MARKUP}" user="{MARKUP}"')
        tab.keyboard.press("Enter")
        expect(tab.locator('[data-rule="marked"] .actor-name')).to_have_text(MARKUP)
        tab.locator('[data-rule="marked"] .actor-name').click()
        expect(tab.locator('[data-rule="marked"]')).to_contain_text("denied now")
        expect(tab.locator("#actor")).to_have_value(f'user="{MARKUP}"')

        file = Path(rules)
        file.write_text(file.read_text().replace("label = marked", f"label = {MARKUP}"))
        page.open("reloads")
        expect(tab.locator(".reload").first).to_contain_text(MARKUP)
        assert tab.locator("img:not(.brand img)").count() == 0
        assert tab.evaluate("document.querySelectorAll('script:not([src])').length") == 0


def streams(port):
    """With one stream for all pages, the second page says so, and goes live once the first is hidden."""
    with live_page(port) as page:
        page.open()
        page.expect_live()
        second = LivePage(page.tab.context, port)
        second.open()
        expect(second.tab.locator("#stream-note")).to_contain_text("The figures on this page are not live.")
        expect(second.tab.locator("#stream-note")).to_contain_text("--ui-streams")
        expect(second.tab.locator(".stream")).to_have_text("Not live")

        page.tab.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        expect(page.tab.locator(".stream")).to_have_text("Paused")
        second.expect_live()
        expect(second.tab.locator("#stream-note")).to_have_count(0)
        second.check_errors(UNAVAILABLE)


def many(port, total):
    """Of many rules, only those in view exist on the page and are received."""
    with live_page(port) as page:
        tab = page.tab
        asked = []
        tab.on("request", lambda request: asked.append(request.url) if "/ui/api/feed" in request.url else None)
        page.open()
        page.expect_live()
        expect(page.row("resource-0")).to_be_visible()
        assert tab.locator("table.rules tbody tr").count() <= 100
        expect(tab.locator("table.rules")).to_have_attribute("aria-rowcount", str(int(total) + 1))
        tab.keyboard.press("End")
        expect(page.row("default")).to_be_visible()
        assert tab.locator("table.rules tbody tr").count() <= 100
        assert len(asked) <= 10, "the page does not ask at each step of scrolling"

        page.open(f"rules?rule=resource-{int(total) // 2}")
        tab.reload()
        expect(page.row(f"resource-{int(total) // 2}")).to_be_in_viewport()
        expect(tab.locator("aside .operation")).to_contain_text(f"/resource-{int(total) // 2} ")


def keyboard(port):
    """The page works without a mouse."""
    with live_page(port) as page:
        tab = page.tab
        page.open()
        page.expect_live()
        tab.keyboard.press("Tab")
        expect(tab.locator("#skip")).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.locator("#main")).to_be_focused()
        assert tab.url.endswith("#/rules"), tab.url
        tab.keyboard.press("Tab")
        expect(tab.locator("#search")).to_be_focused()
        page.row("a-user").get_by_role("link").focus()
        tab.keyboard.press("ArrowDown")
        expect(page.row("b-user").get_by_role("link")).to_be_focused()
        tab.keyboard.press("ArrowUp")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("complementary")).to_contain_text("a-user")
        tab.get_by_role("button", name="Close the panel").focus()
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("complementary")).to_have_count(0)
        expect(page.row("a-user").get_by_role("link")).to_be_focused()
        tab.keyboard.press("Enter")
        tab.get_by_role("button", name="Close the panel").focus()
        tab.keyboard.press("Escape")
        expect(page.row("a-user").get_by_role("link")).to_be_focused()


def texts(port, cases):
    """Prints what the page's modules make of these cases, as JSON."""
    with live_page(port) as page:
        page.open()
        page.expect_live()
        made = page.tab.evaluate(
            """async ({ operations, changes, patterns }) => {
                const text = await import('/ui/rule_text.js');
                const attempt = (make) => { try { return make(); } catch { return null; } };
                const change = ({ rule, actor, credits }) =>
                    text.ruleForActor(rule, new Map(Object.entries(actor)), credits);
                return {
                    operations: operations.map((typed) => attempt(() => [...text.parse(typed)])),
                    patterns: patterns.map(([pattern, value]) => text.matches(pattern, value)),
                    actors: changes.map(({ rule, actor }) =>
                        text.actorName(text.actorFields(rule), new Map(Object.entries(actor)))),
                    ini: changes.map((made) => text.write(change(made), 'ini')),
                    json: changes.map((made) => text.write(change(made), 'json')),
                };
            }""",
            json.loads(cases),
        )
        print(json.dumps(made))


if __name__ == "__main__":
    scenario, *arguments = sys.argv[1:]
    globals()[scenario](*arguments)
