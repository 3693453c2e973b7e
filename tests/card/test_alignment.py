"""BatchNorm's vectors lie where a card's kernels can read them, or images lie so that it does not matter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from engine.client.steps.flat_net import FlatNet
from engine.client.vmap.vmap_rules import StackedRules
from tests.support.pretended_card import card, why_not
from tests.support.tiny import TwoNorms

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CHANNELS = 16


def test_a_client_that_is_left_alone() -> None:
    """Kills: scales that are read where they lie in the matrix of all clients' weights; statistics of a copy that are
    not brought back."""
    with card():
        images = torch.randn(1, 6, CHANNELS, 5, 5).to("cuda")
        images = images[0].to(memory_format=torch.channels_last)[None]
        means, variances, scales, shifts = (torch.ones(2, CHANNELS + 1, device="cuda") for _ in range(4))
        own = [rows[1:, :CHANNELS] for rows in (means, variances, scales, shifts)]  # 68 bytes from the beginning
        assert all(rows.is_contiguous() for rows in own)
        with StackedRules():
            vmap(lambda *given: F.batch_norm(*given, training=True))(images, *own)
        assert not torch.equal(means[1, :CHANNELS].cpu(), torch.ones(CHANNELS))
        assert means[0].cpu().tolist() == [1.0] * (CHANNELS + 1)


@pytest.mark.parametrize(("first", "device", "last"), [(5, "cuda", False), (8, "cuda", True), (5, "cpu", True)])
def test_a_network_with_norms_at_odd_places(first: int, device: str, last: bool) -> None:
    """Kills: channels last where cuDNN then fails; another layout where it does not, which is slower."""
    with card():
        net = FlatNet(TwoNorms(first).build((3, 9, 9), 4), torch.device(device), torch.float32, (3, 9, 9))
        x = torch.randn(4, 3, 9, 9).to(device)
        assert net.laid_out(x).is_contiguous(memory_format=torch.channels_last) is last
        net(x).sum().backward()
