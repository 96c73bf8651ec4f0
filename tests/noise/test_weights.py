"""Gaussian weights by local reparameterization against weights themselves, and KL terms against integrals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from noisy_layers import (
    LAYERS,
    VARIANTS,
    assert_moments,
    kl_exact,
    make_branch,
    make_layer,
    mean_log,
    output_moments,
    with_weight,
)  # fmt: skip
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from snncompress.errors import UsageError
from snncompress.noise.attach import make_options
from snncompress.noise.branch import Clock
from snncompress.noise.weights import FLOOR, KlOptions, WeightBranch, kl_ard, kl_log_uniform, perturb

WEIGHTED = ["sparse-vd", "vd layer log-uniform", "vd neuron ard", "vd weight student", "variance gaussian"]
LOG_ALPHA = torch.linspace(-8, 8, 65, dtype=torch.float64)


class TestMoments:
    @pytest.mark.parametrize("name", LAYERS)
    @pytest.mark.parametrize("variant", WEIGHTED)
    def test_closed_form_is_that_of_the_weights(self, variant: str, name: str) -> None:
        layer, x = make_layer(name)
        branch = make_branch(layer, variant)
        mean, variance = output_moments(layer, x, *branch.moments(layer))
        torch.testing.assert_close(branch.mean(layer, x), mean, rtol=1e-10, atol=1e-10)
        for sample, center in ((branch.sample, mean), (branch.sample_zero, mean - branch_mean(branch, layer, x))):
            torch.manual_seed(1)
            made = sample(layer, x)
            torch.manual_seed(1)
            noise = torch.randn_like(made)
            expected = center + noise * (variance + FLOOR).sqrt()
            torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("name", ["linear", "stride, padding", "groups"])
    @pytest.mark.parametrize("variant", [v for v in VARIANTS if v in WEIGHTED or v.startswith("variance")])
    def test_samples_are_like_those_of_sampled_weights(self, variant: str, name: str) -> None:
        layer, x = make_layer(name, images=2)
        branch = make_branch(layer, variant)
        weight, variance = (moment.detach() for moment in branch.moments(layer))
        with torch.no_grad():
            exact = output_moments(layer, x, weight, variance)
            by_effect = torch.stack([branch.sample(layer, x) for _ in range(1000)])
            by_weights = torch.stack(
                [with_weight(layer, draw_weight(variant, weight, variance), x) for _ in range(1000)]
            )
        assert_moments(by_weights, *exact)
        assert_moments(by_effect, exact[0], exact[1] + FLOOR)

    @pytest.mark.parametrize("variant", WEIGHTED)
    def test_the_bias_has_no_noise(self, variant: str) -> None:
        for name in ("linear", "conv"):
            layer, x = make_layer(name)
            branch = make_branch(layer, variant)
            with torch.no_grad():
                layer.bias.fill_(1e6)
                silent = branch.sample(layer, torch.zeros_like(x)) - layer.bias.view(-1, *[1] * (x.dim() - 2))
                assert float(silent.abs().max()) < 6 * math.sqrt(FLOOR)
                torch.manual_seed(0)
                large = branch.sample(layer, x) - 1e6
                layer.bias.zero_()
                torch.manual_seed(0)
                torch.testing.assert_close(large, branch.sample(layer, x), rtol=0, atol=1e-8)

    @pytest.mark.parametrize("variant", WEIGHTED)
    def test_every_image_has_its_own_noise(self, variant: str) -> None:
        layer, x = make_layer("linear", images=1)
        branch = make_branch(layer, variant)
        errors = (branch.sample(layer, x.expand(4000, -1)) - branch.mean(layer, x)).detach()
        correlation = torch.corrcoef(torch.cat([errors[::2], errors[1::2]], 1).T)[:5, 5:]
        assert float(correlation.abs().max()) < 5 / math.sqrt(2000)


def branch_mean(branch: Any, layer: Any, x: Tensor) -> Tensor:
    """The part of the mean that the weights make."""
    return branch.mean(layer, x) - branch.mean(layer, torch.zeros_like(x))  # type: ignore[no-any-return]


def draw_weight(variant: str, mean: Tensor, variance: Tensor) -> Tensor:
    """One sample of the weights themselves."""
    if variant.endswith("bernoulli"):
        return variance.sqrt() * (torch.rand_like(mean) < 0.5).double().mul(2).sub(1)
    if variant.endswith("uniform") and variant.startswith("variance"):
        return (3 * variance).sqrt() * (2 * torch.rand_like(mean) - 1)
    return mean + variance.sqrt() * torch.randn_like(mean)


class TestPerturb:
    def test_gradients_are_those_of_the_plain_formula(self) -> None:
        mean, variance = torch.randn(50, 7).double(), torch.rand(50, 7).double() ** 4
        mean.requires_grad_(), variance.requires_grad_()
        weight = torch.randn(50, 7).double()
        torch.manual_seed(2)
        sample = perturb(mean, variance)
        ours = torch.autograd.grad((sample.sin() * weight).sum(), (mean, variance))
        torch.manual_seed(2)
        plain = mean + torch.randn_like(mean) * (variance + FLOOR).sqrt()
        torch.testing.assert_close(sample, plain, rtol=1e-14, atol=1e-14)
        theirs = torch.autograd.grad((plain.sin() * weight).sum(), (mean, variance))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

    def test_gradients_by_differences(self) -> None:
        def function(mean: Tensor, variance: Tensor) -> Tensor:
            torch.manual_seed(3)
            return perturb(mean, variance)

        inputs = (torch.randn(4, 3).double().requires_grad_(), (torch.rand(4, 3).double() + 0.1).requires_grad_())
        assert torch.autograd.gradcheck(function, inputs)

    @pytest.mark.parametrize("variant", WEIGHTED)
    @pytest.mark.parametrize("name", ["linear on tokens", "depthwise"])
    def test_gradients_of_a_layer(self, variant: str, name: str) -> None:
        layer, x = make_layer(name)
        branch = make_branch(layer, variant)
        x.requires_grad_()
        wanted = [x, *layer.parameters(), *(p for p in branch.parameters() if p.requires_grad)]
        torch.manual_seed(4)
        ours = torch.autograd.grad(branch.sample(layer, x).sin().sum(), wanted, allow_unused=True)
        mean, variance = branch.moments(layer)
        spread = with_weight(layer, variance, x.square()) - with_weight(layer, variance, torch.zeros_like(x))
        torch.manual_seed(4)
        plain = with_weight(layer, mean, x) + torch.randn_like(spread) * (spread + FLOOR).sqrt()
        theirs = torch.autograd.grad(plain.sin().sum(), wanted, allow_unused=True)
        for one, other in zip(ours, theirs, strict=True):
            expected = torch.zeros_like(layer.weight) if other is None else other
            torch.testing.assert_close(torch.zeros_like(expected) if one is None else one, expected)

    def test_it_touches_no_input_and_survives_rounding_below_zero(self) -> None:
        mean, variance = torch.zeros(1000), torch.full((1000,), -1e-6)
        before = mean.clone(), variance.clone()
        sample = perturb(mean, variance)
        assert float(sample.std()) == pytest.approx(math.sqrt(FLOOR), rel=0.2)
        assert torch.equal(mean, before[0])
        assert torch.equal(variance, before[1])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_the_root_is_taken_in_single_precision(self, dtype: torch.dtype) -> None:
        mean, variance = torch.zeros(100, dtype=dtype), torch.zeros(100, dtype=dtype)
        variance.requires_grad_()
        torch.manual_seed(0)
        sample = perturb(mean, variance)
        torch.manual_seed(0)
        expected = torch.randn(100) * math.sqrt(FLOOR)  # 1e-8 is zero in half precision
        torch.testing.assert_close(sample, expected.to(dtype))
        sample.float().sum().backward()
        assert variance.grad is not None
        assert bool(torch.isfinite(variance.grad).all())


class TestKl:
    def test_quadrature_where_the_answer_is_known(self) -> None:
        far = torch.tensor([60.0], dtype=torch.float64)  # 1 + √α·ε → √α·ε
        exact = 30 - 0.5 * (math.log(2) + 0.5772156649015329)
        u = torch.linspace(-60, 40, 40_001, dtype=torch.float64)
        density = sum(Normal(1.0, (0.5 * far).exp()).log_prob(sign * u.exp()).exp() for sign in (1, -1))
        assert float(torch.trapezoid(u * u.exp() * density, u)) == pytest.approx(exact, abs=1e-9)
        # Small α: E log(1 + √α·ε) = −α/2 − 3α²/4 − …
        alpha = math.exp(-8.0)
        near = float(mean_log(torch.tensor([-8.0], dtype=torch.float64)))
        assert near == pytest.approx(-alpha / 2 - 0.75 * alpha**2, abs=1e-9)

    def test_the_approximation_is_the_integral(self) -> None:
        difference = kl_log_uniform(LOG_ALPHA) - kl_exact(LOG_ALPHA)
        assert float(difference.abs().max()) < 1e-2

    def test_it_falls_to_zero(self) -> None:
        for kl in (kl_log_uniform, kl_ard):
            values = kl(torch.linspace(-30, 30, 1001, dtype=torch.float64))
            assert bool((values.diff() < 0).all())
            assert float(kl(torch.tensor(math.inf))) == 0
            assert float(kl(torch.tensor(40.0))) == pytest.approx(0, abs=1e-6)
            assert math.isfinite(float(kl(torch.tensor(-1e4))))

    def test_ard_is_a_kl_of_two_normals(self) -> None:
        mu, alpha = torch.randn(65).double(), LOG_ALPHA.exp()
        exact = kl_divergence(Normal(mu, alpha.sqrt() * mu.abs()), Normal(0.0, (1 + alpha).sqrt() * mu.abs()))
        torch.testing.assert_close(kl_ard(LOG_ALPHA), exact, rtol=1e-9, atol=1e-12)

    def test_the_prior_of_ard_is_the_best_one(self) -> None:
        posterior = Normal(torch.tensor(0.7).double(), torch.tensor(0.5).double())
        log_alpha = torch.tensor(0.5 / 0.7).double().log() * 2
        scales = torch.linspace(0.3, 2, 2001, dtype=torch.float64)
        best = kl_divergence(posterior, Normal(torch.zeros(()).double(), scales)).min()
        torch.testing.assert_close(kl_ard(log_alpha), best, rtol=1e-6, atol=0)


class TestPenalty:
    @pytest.mark.parametrize("variant", [v for v in WEIGHTED if not v.startswith("variance")])
    def test_it_is_the_scaled_share_of_the_kl(self, variant: str) -> None:
        layer, _ = make_layer("conv")
        branch: WeightBranch = make_branch(layer, variant, kl_scale=0.7, kl_warmup="2:6")
        for epoch, share in ((0.0, 0.0), (2.0, 0.0), (3.0, 0.25), (6.0, 1.0), (9.5, 1.0)):
            branch.clock = Clock(epoch, 500)
            torch.manual_seed(0)
            penalty = branch.penalty(layer)
            torch.manual_seed(0)
            kl = branch.kl(layer)
            assert kl is not None
            torch.testing.assert_close(penalty, 0.7 * share * kl / 500)
            assert penalty.requires_grad == (share > 0)

    @pytest.mark.parametrize(
        ("text", "ramp"),
        [
            ("0", {0: 1, 5: 1}),
            ("20", {0: 0, 5: 0.25, 20: 1, 30: 1}),
            ("5:20", {0: 0, 5: 0, 8: 0.2, 12.5: 0.5, 20: 1, 99: 1}),
            (":4", {0: 0, 1: 0.25, 4: 1}),
            ("0.5:1.5", {0.5: 0, 1: 0.5, 1.5: 1}),
            ("5:5", {0: 0, 4.9: 0, 5: 1}),  # a step
        ],
    )
    def test_warmup(self, text: str, ramp: dict[float, float]) -> None:
        options = KlOptions(kl_warmup=text)
        assert {epoch: options.ramp(epoch) for epoch in ramp} == pytest.approx(ramp)

    @pytest.mark.parametrize("method", ["sparse-vd", "vd"])
    def test_warmup_and_scale_that_make_no_sense(self, method: str) -> None:
        for text in ("", "soon", "20:5", "-1", "-3:5", "5:", "1:2:3", "nan", "inf", "3:inf"):
            with pytest.raises(UsageError, match=r"option kl_warmup '.*' is not of the form 20 or 5:20"):
                make_options(method, {"kl_warmup": text})
        for scale in (-1, "nan", "inf"):
            with pytest.raises(UsageError, match=r"option kl_scale=.* is out of range"):
                make_options(method, {"kl_scale": scale})
        assert make_options(method, {"kl_warmup": 20}).ramp(10) == 0.5
