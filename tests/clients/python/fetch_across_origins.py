"""Opens each page, whose script then fetches a URL with an Authorization header.

Prints a line of JSON for each: the status and the body as the page reads them, or null if the browser hides them.

    fetch_across_origins.py URL AUTHORIZATION PAGE...
"""

import json
import sys

from browser import chromium

FETCH = """async ([url, authorization]) => {
    try {
        const response = await fetch(url, {headers: {authorization}});
        return {status: response.status, body: await response.text()};
    } catch (error) {
        return null;
    }
}"""

url, authorization, *pages = sys.argv[1:]
with chromium() as context:
    for address in pages:
        page = context.new_page()
        page.goto(address)
        print(json.dumps(page.evaluate(FETCH, [url, authorization])))
