from __future__ import annotations

import pytest

from feeder.shard.store.http_answers import addresses_of, private_one


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "0.0.0.0", "100.64.0.1",
     "192.168.0.1", "172.16.0.1", "224.0.0.1", "255.255.255.255", "fe80::1", "fc00::1", "::ffff:10.0.0.1",
     "2002:7f00:1::", "64:ff9b::a00:1", "::", "fec0::1", "::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b:1::a00:1"],
)  # fmt: skip
def test_an_address_that_is_none_of_the_internets_is_private_also_beside_public_ones(address: str) -> None:
    assert private_one(["8.8.8.8", "2606:4700::1111", address]) == address


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606:4700::1111"])
def test_an_address_of_the_internet_is_not_private(address: str) -> None:
    assert private_one([address]) is None


def test_the_addresses_of_a_name_are_found_and_a_name_that_is_none_is_an_error() -> None:
    assert private_one(addresses_of("localhost", 80)) in ("127.0.0.1", "::1")
    with pytest.raises(OSError, match="not known"):
        addresses_of("a" * 64 + ".example", 80)
