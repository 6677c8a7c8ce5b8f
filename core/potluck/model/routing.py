"""How a router chooses a few experts for each token."""

from dataclasses import dataclass
from typing import Literal

ScoreFunction = Literal["softmax", "sigmoid", "sqrtsoftplus", "sparse mixer"]
"""What turns the router's products into probabilities: over all experts, or of each by itself.

A sparse mixer (https://arxiv.org/abs/2409.12136) chooses the highest product h, whose probability is that of a softmax over
those p with (h - p) / max(|p|, h) up to `jitter`; and so again for the next one, without the first.
"""


LEAST_SUM = 1e-20  # is added to the sum of the chosen ones' probabilities, which may all be 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What is chosen of the products of a token and the router's rows, and what its factors are.

    probabilities = softmax, sigmoid or the root of softplus of the products
    choice = probabilities + bias, of the experts in the best groups; or products + bias (`biases_products`)
    factors = scale · those of the `per_token` highest choices (/ their sum)

    Factors multiply what experts give, or what they read (`scales_input`, Llama 4). Instead of those with the highest
    choices, a table may say which experts a token has, by its id (`vocabulary`, DeepSeek V4).

    Experts in sequence form groups of equal size. A group is as good as its highest choice (DeepSeek-V2), or its
    two highest choices together (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.1.2).
    """

    count: int  # of experts
    per_token: int
    normalise: bool  # whether the factors of the chosen ones are made to add up to `scale`
    function: ScoreFunction = "softmax"
    jitter: float = 0.0  # of a sparse mixer
    has_bias: bool = False
    biases_products: bool = (
        False  # it is added to products: only where a sigmoid turns them, and without groups
    )
    groups: int = 1
    groups_per_token: int = 1
    best_in_group: int = 2  # 1 or 2
    scale: float = 1.0
    scales_input: bool = False
    shared_scale: float = 1.0  # of what the shared expert gives, unless it has a gate
    vocabulary: int | None = None  # ids of tokens whose experts a table says; None: there is none
    has_shared_gate: bool = False  # one row more, whose sigmoid is the factor of the shared expert

    @property
    def rows(self) -> int:
        """Of the router's matrix."""
        return self.count + self.has_shared_gate

    @property
    def chooses_products(self) -> bool:
        """Whether the highest products are chosen: sigmoids have their order, until they are 1 in f32."""
        has_order = self.biases_products or not self.has_bias
        return self.function == "sigmoid" and has_order and self.groups == 1

    @property
    def group_size(self) -> int:
        return self.count // self.groups
