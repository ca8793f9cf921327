"""A bouncer with pycrowdsec: crowdsec_bouncer.py URL KEY

Prints the decisions that it knows, as JSON, after each line on its input: at first all of them, then after the changes. A
line that is an address asks about this address.
"""

import json
import sys

from pycrowdsec.client import QueryClient, StreamClient

url, key = sys.argv[1:]
stream = StreamClient(api_key=key, lapi_url=url)
query = QueryClient(api_key=key, lapi_url=url)
is_first = True
for line in sys.stdin:
    address = line.strip()
    if address:
        print(json.dumps(query.get_decisions_for(address)), flush=True)
        continue
    stream.cycle("true" if is_first else "false")
    is_first = False
    print(json.dumps(stream.get_current_decisions(), sort_keys=True), flush=True)
