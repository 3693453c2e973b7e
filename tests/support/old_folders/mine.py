from ray import tune

from fedskew import Claim, Experiment, Sweep


def two_rates(profile):
    """Two proximal terms."""
    base = Experiment(
        name="small",
        rounds=2,
        data={"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 4, "alpha": 0.3},
        model={"name": "mlp", "hidden": [4]},
        algorithm={"name": "fedprox", "mu": 0.1},
        participation={"count": 2},
        checkpoint={"every": 1},
    )
    claims = (Claim("a proximal term helps", "nobody", better={"mu": 1.0}, worse={"mu": 0.0}),)
    return Sweep(base=base, space={"mu": tune.grid_search([0.0, 1.0])}, seeds=(0, 1), claims=claims)
