"""A GPT whose attention is a function that can be swapped: for train_gpt and train_throughput."""

import math

import torch
from torch import nn
from torch.nn import functional


def parts(qkv, heads):
    """Q, K and V, each [batch, heads, N, d], where the projection left them in [batch, N, 3 * hidden]: not copied."""
    return qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)


def attend(qkv, heads, attention):
    """What the projection made, [batch, N, 3 * hidden], to [batch, N, hidden]."""
    return attention(*parts(qkv, heads), True).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x, attention):  # x: [batch, N, hidden]
        x = x + self.out(attend(self.qkv(self.norm_attention(x)), self.heads, attention))
        return x + self.down(functional.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens to the logits of the next one; the embedding is the last layer, too."""

    def __init__(self, vocabulary, context, layers, hidden, heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for name, weight in self.named_parameters():  # as GPT-2 begins
            if weight.dim() == 2:
                end_of_branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * layers) if end_of_branch else 1))

    def forward(self, tokens, attention):  # tokens: [batch, N]; gives [batch, N, vocabulary]
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, attention)
        return functional.linear(self.norm(x), self.tokens.weight)

    def loss(self, tokens, attention):
        """Mean cross entropy of each token from those before it; tokens: [batch, N + 1]."""
        logits = self(tokens[:, :-1], attention)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
