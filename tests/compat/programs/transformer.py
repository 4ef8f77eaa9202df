"""A small transformer that learns to repeat a sequence."""
from tinygrad import Tensor, nn


class Block:
    def __init__(self, dim, heads):
        self.heads, self.size = heads, dim // heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def __call__(self, x):
        batch, time, dim = x.shape
        q, k, v = (t.reshape(batch, time, self.heads, self.size).transpose(1, 2)
                   for t in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(batch, time, dim)
        x = x + self.out(seen)
        return x + self.down(self.up(self.ln2(x)).gelu())


class Transformer:
    def __init__(self, words=5, dim=16, longest=6):
        self.words, self.places = nn.Embedding(words, dim), nn.Embedding(longest, dim)
        self.block, self.norm, self.head = Block(dim, 2), nn.LayerNorm(dim), nn.Linear(dim, words)

    def __call__(self, tokens):
        x = self.words(tokens) + self.places(Tensor.arange(tokens.shape[1]))
        return self.head(self.norm(self.block(x)))


Tensor.manual_seed(2)
model = Transformer()
tokens = Tensor([[0, 1, 2, 3, 4, 0], [3, 4, 0, 1, 2, 3]])
opt = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.02)
with Tensor.train():
    losses = []
    for _ in range(25):
        opt.zero_grad()
        logits = model(tokens[:, :-1])
        loss = logits.reshape(-1, 5).sparse_categorical_crossentropy(tokens[:, 1:].reshape(-1)).backward()
        opt.step()
        losses.append(loss.item())
assert isinstance(logits, Tensor) and losses[-1] < 0.3 * losses[0], losses
