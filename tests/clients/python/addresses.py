"""Writes addresses and networks with what Python's ipaddress says about them, for tests/networks.rs.

Usage: addresses.py COUNT SEED. A line has an address as a gateway might write it (or a broken one), the address in its
standard form or `-`, a network, whether it contains the address, and the network of the address with that length.
"""

import ipaddress
import random
import sys

MAPPED = ipaddress.ip_network("::ffff:0:0/96")
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def plain(address):
    """Returns the IPv4 address in an IPv6 one, if there is one."""
    if address.version == 6:
        if address.ipv4_mapped:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.ip_address(int(address) & 0xFFFFFFFF)
    return address


def parse(text):
    try:
        return plain(ipaddress.ip_address(text.split("%")[0] if ":" in text else text))
    except ValueError:
        return None


def some_address(rng):
    kind = rng.randrange(6)
    if kind < 2:
        return ipaddress.IPv4Address(rng.getrandbits(32))
    if kind == 2:
        return ipaddress.IPv6Address(0xFFFF << 32 | rng.getrandbits(32))
    if kind == 3:
        return NAT64[rng.getrandbits(32)]
    # Zeros in many places, because the standard form shortens them.
    bits = rng.getrandbits(128)
    for _ in range(rng.randrange(4)):
        bits &= ~(0xFFFF << 16 * rng.randrange(8))
    return ipaddress.IPv6Address(bits)


def notation(rng, address):
    forms = [str(address)]
    if address.version == 6:
        forms += [address.exploded, str(address).upper()]
        if int(address) >> 32 in (0xFFFF, int(NAT64.network_address) >> 32):
            prefix = "::ffff:" if int(address) >> 32 == 0xFFFF else "64:ff9b::"
            forms.append(prefix + str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        text = rng.choice(forms)
        zone = rng.choice(["", "", "%eth0", "%1"])
        return rng.choice([text + zone, f"[{text}{zone}]", f"[{text}{zone}]:{rng.randrange(65536)}"])
    return rng.choice([forms[0], f"{forms[0]}:{rng.randrange(65536)}"])


def broken(rng, text):
    """Changes a plain address in one place."""
    at = rng.randrange(len(text))
    return text[:at] + rng.choice("0123456789abcdefg.:") + text[at + rng.randrange(2) :]


def main():
    count, rng = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    lines = []
    for number in range(count):
        address = some_address(rng)
        text = notation(rng, address)
        value = plain(address)
        if number % 4 == 0:
            text = broken(rng, str(address))
            value = parse(text)
            # Python knows no ports: it is one if what is before it is an IPv4 address.
            before, colon, port = text.partition(":")
            if value is None and colon and port.isdigit() and int(port) < 65536:
                value = parse(before)
        near = value or ipaddress.ip_address("10.0.0.1")
        if rng.randrange(10) == 0:
            near = ipaddress.IPv6Address(1 << 125) if near.version == 4 else ipaddress.IPv4Address(1 << 25)
        bits = near.max_prefixlen
        other = type(near)(int(near) ^ (rng.getrandbits(bits) >> rng.randrange(bits)))
        network = ipaddress.ip_network((other, rng.randrange(bits + 1)), strict=False)
        # divvy reads these as IPv4.
        if network.version == 6 and any(network.subnet_of(range_) for range_ in (MAPPED, NAT64)):
            network = ipaddress.ip_network("2001:db8::/32")
        if value is None:
            lines.append(f"{text}\t-\t{network}\t0\t-")
            continue
        is_in = value.version == network.version and value in network
        own = ipaddress.ip_network((value, min(network.prefixlen, value.max_prefixlen)), strict=False)
        lines.append(f"{text}\t{value}\t{network}\t{int(is_in)}\t{own}")
        if len(lines) >= 10_000:
            print("\n".join(lines))
            lines = []
    if lines:
        print("\n".join(lines))


main()
