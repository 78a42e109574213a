"""Training steps on text, speech and other sequences."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from memgauge.workload import Workload


def encoder_classifier() -> Workload:
    """nn.TransformerEncoder with a padding mask and mean pooling, AdamW."""

    class PositionalEncoding(nn.Module):
        def __init__(self, d_model, max_len=512):
            super().__init__()
            position = torch.arange(max_len).unsqueeze(1)
            div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
            pe = torch.zeros(1, max_len, d_model)
            pe[0, :, 0::2] = torch.sin(position * div_term)
            pe[0, :, 1::2] = torch.cos(position * div_term)
            self.register_buffer("pe", pe)

        def forward(self, x):
            return x + self.pe[:, : x.size(1)]

    class Classifier(nn.Module):
        def __init__(self, vocab=10000, d_model=256, classes=4):
            super().__init__()
            self.embed = nn.Embedding(vocab, d_model, padding_idx=0)
            self.position = PositionalEncoding(d_model)
            layer = nn.TransformerEncoderLayer(d_model, 8, 1024, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, num_layers=3)
            self.out = nn.Linear(d_model, classes)

        def forward(self, tokens):
            padding = tokens == 0
            x = self.position(self.embed(tokens) * math.sqrt(256))
            x = self.encoder(x, src_key_padding_mask=padding)
            keep = (~padding).unsqueeze(-1)
            return self.out((x * keep).sum(1) / keep.sum(1).clamp(min=1))

    def build():
        model = Classifier()
        return model, torch.optim.AdamW(model.parameters(), lr=2e-5)

    def batch():
        tokens = torch.randint(1, 10000, (8, 128))
        tokens[:, 100:] = 0
        return tokens, torch.randint(0, 4, (8,))

    def step(model, optimizer, batch):
        tokens, labels = batch
        model.train()
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def gpt() -> Workload:
    """A small GPT: causal sdpa, hand-written GELU, tied weights, two AdamW groups, clipping."""
    vocab, width, heads, length = 8192, 256, 4, 128

    class NewGELU(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    class CausalSelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(width, 3 * width)
            self.c_proj = nn.Linear(width, width)

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(width, dim=2)
            q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(width), CausalSelfAttention()
            self.ln_2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), NewGELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.h = nn.ModuleList([Block() for _ in range(4)])
            self.ln_f = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, vocab, bias=False)
            self.wte.weight = self.lm_head.weight

        def forward(self, idx, targets):
            pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
            x = self.wte(idx) + self.wpe(pos)
            for block in self.h:
                x = block(x)
            logits = self.lm_head(self.ln_f(x))
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
            return logits, loss

    def build():
        model = GPT()
        decay = [p for p in model.parameters() if p.dim() >= 2]
        nodecay = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}]
        return model, torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))

    def batch():
        data = torch.randint(vocab, (8, length + 1))
        return data[:, :-1], data[:, 1:].contiguous()

    def step(model, optimizer, batch):
        x, y = batch
        _logits, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Workload(build=build, batch=batch, step=step)


def translation() -> Workload:
    """nn.Transformer with source and target masks, label smoothing, Adam and a warm-up schedule."""
    pad, vocab, width = 0, 5000, 256

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src_emb, self.tgt_emb = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
            self.pos = nn.Parameter(torch.zeros(64, width))
            self.transformer = nn.Transformer(width, 8, 2, 2, 512, dropout=0.1, batch_first=True)
            self.generator = nn.Linear(width, vocab)

        def forward(self, src, tgt):
            causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
            outs = self.transformer(
                self.src_emb(src) + self.pos[: src.size(1)],
                self.tgt_emb(tgt) + self.pos[: tgt.size(1)],
                tgt_mask=causal,
                src_key_padding_mask=torch.zeros_like(src, dtype=torch.float).masked_fill(src == pad, -1e9),
                tgt_is_causal=True,
            )
            return self.generator(outs)

    criterion = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=0.1)

    def build():
        model = Seq2Seq()
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
        noam = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda n: width**-0.5 * min((n + 1) ** -0.5, (n + 1) * 4000**-1.5)
        )
        return model, optimizer, noam

    def batch():
        return torch.randint(0, vocab, (10, 48)), torch.randint(0, vocab, (10, 41))

    def step(model, optimizer, scheduler, batch):
        src, tgt = batch
        logits = model(src, tgt[:, :-1])
        optimizer.zero_grad()
        loss = criterion(logits.reshape(-1, vocab), tgt[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def masked_language_model() -> Workload:
    """Explicit softmax attention with masks and relative positions, 15 % of tokens predicted, AdamW."""
    vocab, width, heads, length = 5000, 192, 6, 128

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.bias = nn.Embedding(2 * length - 1, heads)
            self.dropout = nn.Dropout(0.1)

        def split(self, x):
            return x.view(x.size(0), -1, heads, width // heads).permute(0, 2, 1, 3)

        def forward(self, x, mask):
            q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            at = torch.arange(x.size(1), device=x.device)
            relative = self.bias(at[:, None] - at[None, :] + length - 1).permute(2, 0, 1)
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(width // heads)
            scores = (scores + relative).masked_fill(~mask[:, None, None, :], float("-inf"))
            probs = self.dropout(torch.softmax(scores, dim=-1))
            y = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
            return self.out(y.view(x.shape))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(width), nn.LayerNorm(width)
            self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, mask):
            x = self.norm1(x + self.attention(x, mask))
            return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.decode = nn.Linear(width, vocab)

        def forward(self, ids, mask):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x, mask)
            return self.decode(x)

    def build():
        model = Bert()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def batch():
        ids = torch.randint(1, vocab, (6, length))
        labels = ids.clone()
        chosen = torch.rand(ids.shape) < 0.15
        labels[~chosen] = -100
        ids[chosen] = 0
        mask = torch.arange(length).expand(6, -1) < torch.randint(length // 2, length, (6, 1))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        logits = model(batch["input_ids"], batch["attention_mask"])
        loss = F.cross_entropy(logits.view(-1, vocab), batch["labels"].view(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def llama_adafactor() -> Workload:
    """RMSNorm, rotary positions, grouped keys and values, SwiGLU, Adafactor."""
    vocab, dim, heads, kv_heads, length = 8000, 256, 8, 2, 128
    head_dim = dim // heads

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def rotate(x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-x2, x1), dim=-1) * sin

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = RMSNorm(), RMSNorm()
            self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            self.wk, self.wv = (nn.Linear(dim, kv_heads * head_dim, bias=False) for _ in range(2))
            self.w1, self.w3 = nn.Linear(dim, 688, bias=False), nn.Linear(dim, 688, bias=False)
            self.w2 = nn.Linear(688, dim, bias=False)

        def forward(self, x, cos, sin):
            b, t, _ = x.shape
            h = self.norm1(x)
            q = self.wq(h).view(b, t, heads, head_dim).transpose(1, 2)
            k = self.wk(h).view(b, t, kv_heads, head_dim).transpose(1, 2)
            v = self.wv(h).view(b, t, kv_heads, head_dim).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            k = k.repeat_interleave(heads // kv_heads, dim=1)
            v = v.repeat_interleave(heads // kv_heads, dim=1)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.wo(a.transpose(1, 2).reshape(b, t, dim))
            h = self.norm2(x)
            return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(vocab, dim)
            self.layers = nn.ModuleList([Layer() for _ in range(4)])
            self.norm, self.output = RMSNorm(), nn.Linear(dim, vocab, bias=False)
            freqs = 1.0 / 10000 ** (torch.arange(0, head_dim, 2).float() / head_dim)
            angles = torch.outer(torch.arange(length).float(), freqs)
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, tokens):
            x = self.tok(tokens)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            return self.output(self.norm(x))

    def build():
        model = Llama()
        return model, torch.optim.Adafactor(model.parameters(), lr=1e-3)

    def batch():
        return torch.randint(0, vocab, (4, length + 1))

    def step(model, optimizer, tokens):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    return Workload(build=build, batch=batch, step=step)


def mixture_of_experts() -> Workload:
    """Top-2 routing: each expert gathers its tokens with where and adds them back, AdamW."""
    dim, experts, k, batch_size, length = 192, 8, 2, 16, 64

    class Expert(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    class SparseMoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(dim, experts, bias=False)
            self.experts = nn.ModuleList(Expert() for _ in range(experts))

        def forward(self, x):
            shape = x.shape
            x = x.reshape(-1, dim)
            probs = F.softmax(self.gate(x), dim=1)
            weights, selected = torch.topk(probs, k, dim=-1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                token, nth = torch.where(selected == i)
                out.index_add_(0, token, weights[token, nth, None] * expert(x[token]))
            load = F.one_hot(selected, experts).float().mean((0, 1))
            return out.view(shape), experts * (load * probs.mean(0)).sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4000, dim)
            self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
            self.moes = nn.ModuleList(SparseMoE() for _ in range(2))
            self.head = nn.Linear(dim, 4000)

        def forward(self, tokens):
            x, balance = self.embed(tokens), 0.0
            for norm, moe in zip(self.norms, self.moes, strict=True):
                y, aux = moe(norm(x))
                x, balance = x + y, balance + aux
            return self.head(x), balance

    def build():
        model = Model()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch():
        tokens = torch.randint(0, 4000, (batch_size, length + 1))
        return tokens[:, :-1], tokens[:, 1:]

    def step(model, optimizer, batch):
        x, y = batch
        logits, balance = model(x)
        loss = F.cross_entropy(logits.transpose(1, 2), y) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(
        build=build, batch=batch, step=step, values={"nonzero": batch_size * length * k / experts}
    )


def capacity_experts() -> Workload:
    """A mixture of experts with fixed capacity, dispatched by one-hot einsum, AdamW with amsgrad."""
    dim, hidden, experts, capacity = 128, 512, 4, 160

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.randn(dim, experts) * 0.02)
            self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * 0.02)
            self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * 0.02)

        def forward(self, x):
            gates = torch.einsum("sm,me->se", x, self.gate).softmax(dim=-1)
            mask = F.one_hot(gates.argmax(dim=-1), experts)
            place = torch.cumsum(mask, dim=0) * mask - 1
            mask = mask * (place < capacity)
            slot = F.one_hot((place * mask).sum(dim=1).clamp(min=0), capacity).to(x.dtype)
            combine = torch.einsum("se,sc->sec", gates * mask, slot)
            dispatch = combine.bool().to(x.dtype)
            inside = torch.einsum("sec,sm->ecm", dispatch, x)
            h = torch.einsum("ecm,emh->ech", inside, self.w1).relu()
            h = torch.einsum("ech,ehm->ecm", h, self.w2)
            return torch.einsum("sec,ecm->sm", combine, h)

    class Regressor(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(32, dim)
            self.layers = nn.ModuleList([MoE() for _ in range(3)])
            self.out = nn.Linear(dim, 1)

        def forward(self, x):
            x = self.inside(x)
            for layer in self.layers:
                x = x + layer(x)
            return self.out(x).squeeze(-1)

    def build():
        model = Regressor()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)

    def batch():
        x = torch.randn(512, 32)
        return x, x.sum(dim=1)

    def step(model, optimizer, batch):
        x, y = batch
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def lstm_language_model() -> Workload:
    """Truncated backpropagation through time: the hidden state lives on, detached; plain SGD by hand."""
    vocab, width, layers, rows, length = 6000, 256, 2, 20, 35

    class RNNModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.encoder = nn.Embedding(vocab, width)
            self.rnn = nn.LSTM(width, width, layers, dropout=0.5)
            self.decoder = nn.Linear(width, vocab)
            self.hidden = None

        def forward(self, tokens):
            if self.hidden is None:
                zeros = torch.zeros(layers, tokens.size(1), width, device=tokens.device)
                self.hidden = (zeros, zeros.clone())
            self.hidden = tuple(h.detach() for h in self.hidden)
            out, self.hidden = self.rnn(self.drop(self.encoder(tokens)), self.hidden)
            return F.log_softmax(self.decoder(self.drop(out)).view(-1, vocab), dim=1)

    def build():
        return RNNModel()

    def batch():
        data = torch.randint(0, vocab, (length + 1, rows))
        return data[:-1], data[1:].reshape(-1)

    def step(model, batch):
        data, targets = batch
        model.zero_grad()
        loss = F.nll_loss(model(data), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-20.0)
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def gru_tagger() -> Workload:
    """A bidirectional GRU over packed sequences of unequal length, Adam."""
    vocab, tags = 5000, 17
    lengths = [48 - 2 * i for i in range(16)]

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, 128, padding_idx=0)
            self.gru = nn.GRU(128, 192, num_layers=2, bidirectional=True, batch_first=True)
            self.out = nn.Linear(384, tags)

        def forward(self, tokens, lengths):
            packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
            hidden, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
            return self.out(hidden)

    def build():
        model = Tagger()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        labels = torch.full_like(tokens, -100)
        for row, n in enumerate(lengths):
            tokens[row, :n] = torch.randint(1, vocab, (n,))
            labels[row, :n] = torch.randint(0, tags, (n,))
        return tokens, labels, lengths

    def step(model, optimizer, batch):
        tokens, labels, lengths = batch
        optimizer.zero_grad()
        logits = model(tokens, lengths)
        loss = F.cross_entropy(logits.reshape(-1, tags), labels.reshape(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def lstm_cell_loop() -> Workload:
    """A forecaster that steps nn.LSTMCell by hand and then feeds on its own output, Adam."""

    class Forecaster(nn.Module):
        def __init__(self, hidden=256):
            super().__init__()
            self.hidden = hidden
            self.lstm1 = nn.LSTMCell(8, hidden)
            self.lstm2 = nn.LSTMCell(hidden, hidden)
            self.linear = nn.Linear(hidden, 8)

        def forward(self, series, future):
            outputs = []
            h1 = c1 = torch.zeros(series.size(0), self.hidden, device=series.device)
            h2 = c2 = torch.zeros_like(h1)
            for x in series.unbind(1):
                h1, c1 = self.lstm1(x, (h1, c1))
                h2, c2 = self.lstm2(h1, (h2, c2))
                y = self.linear(h2)
                outputs += [y]
            for _ in range(future):
                h1, c1 = self.lstm1(y, (h1, c1))
                h2, c2 = self.lstm2(h1, (h2, c2))
                y = self.linear(h2)
                outputs += [y]
            return torch.stack(outputs, dim=1)

    def build():
        model = Forecaster()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(32, 60, 8)

    def step(model, optimizer, series):
        past, target = series[:, :40], series[:, 1:]
        optimizer.zero_grad()
        out = model(past, future=19)
        loss = F.mse_loss(out, target)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def ctc_speech() -> Workload:
    """Convolutions and a GRU over spectrograms with the CTC loss, AdamW and a one-cycle schedule."""

    class Recognizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv2d(1, 16, 11, (2, 2), 5), nn.BatchNorm2d(16), nn.Hardtanh(0, 20, inplace=True),
                nn.Conv2d(16, 16, 11, (2, 1), 5), nn.BatchNorm2d(16), nn.Hardtanh(0, 20, inplace=True),
            )  # fmt: skip
            self.rnn = nn.GRU(320, 192, bidirectional=True)
            self.fc = nn.Linear(384, 29)

        def forward(self, spectrogram):
            x = self.conv(spectrogram)
            x = x.flatten(1, 2).permute(2, 0, 1)
            x, _ = self.rnn(x)
            return self.fc(x).log_softmax(-1)

    ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    def build():
        model = Recognizer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-4, total_steps=100)
        return model, optimizer, schedule

    def batch():
        return torch.randn(8, 1, 80, 160), torch.randint(1, 29, (8, 20))

    def step(model, optimizer, schedule, batch):
        spectrograms, labels = batch
        optimizer.zero_grad()
        output = model(spectrograms)
        input_lengths = torch.full((8,), output.size(0), dtype=torch.long)
        target_lengths = torch.full((8,), labels.size(1), dtype=torch.long)
        loss = ctc(output, labels, input_lengths, target_lengths)
        loss.backward()
        optimizer.step()
        schedule.step()

    return Workload(build=build, batch=batch, step=step)


def fast_text() -> Workload:
    """A bag of words: sparse EmbeddingBag and SGD."""

    class TextModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(100_000, 64, sparse=True)
            self.fc = nn.Linear(64, 4)

        def forward(self, text, offsets):
            return self.fc(self.embedding(text, offsets))

    def build():
        model = TextModel()
        return model, torch.optim.SGD(model.parameters(), lr=5.0)

    def batch():
        offsets = torch.arange(0, 256 * 64, 64)
        return torch.randint(0, 4, (256,)), torch.randint(0, 100_000, (256 * 64,)), offsets

    def step(model, optimizer, batch):
        label, text, offsets = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text, offsets), label)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def skip_gram() -> Workload:
    """word2vec with negative sampling: two sparse embeddings and SparseAdam."""

    class SkipGram(nn.Module):
        def __init__(self, vocab=50_000, dim=100):
            super().__init__()
            self.u = nn.Embedding(vocab, dim, sparse=True)
            self.v = nn.Embedding(vocab, dim, sparse=True)
            self.u.weight.data.uniform_(-0.5 / dim, 0.5 / dim)
            self.v.weight.data.zero_()

        def forward(self, center, context, negative):
            u, v, n = self.u(center), self.v(context), self.v(negative)
            score = F.logsigmoid((u * v).sum(1).clamp(-10, 10))
            against = F.logsigmoid(-torch.bmm(n, u.unsqueeze(2)).squeeze(2).clamp(-10, 10)).sum(1)
            return -(score + against).mean()

    def build():
        model = SkipGram()
        return model, torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)

    def batch():
        return tuple(torch.randint(0, 50_000, s) for s in ((1024,), (1024,), (1024, 5)))

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def greedy_generation() -> Workload:
    """Inference: tokens generated one by one with a key and value cache that grows by cat."""
    vocab, dim, heads, new_tokens = 16000, 384, 6, 16

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def forward(self, x, cache):
            q, k, v = (
                t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            if cache is not None:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            x = x + self.proj(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x)), (k, v)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, dim)
            self.layers = nn.ModuleList([Layer() for _ in range(4)])
            self.head = nn.Linear(dim, vocab, bias=False)

        def forward(self, tokens, caches):
            x = self.embed(tokens)
            for i, layer in enumerate(self.layers):
                x, caches[i] = layer(x, caches[i])
            return self.head(x[:, -1]), caches

    def build():
        return Decoder().eval()

    def batch():
        return torch.randint(0, vocab, (6, 96))

    @torch.inference_mode()
    def step(model, prompt):
        caches = [None] * 4
        logits, caches = model(prompt, caches)
        tokens = [logits.argmax(-1, keepdim=True)]
        for _ in range(new_tokens):
            logits, caches = model(tokens[-1], caches)
            tokens.append(logits.argmax(-1, keepdim=True))
        return torch.cat([prompt, *tokens], dim=1)

    return Workload(build=build, batch=batch, step=step, mode="infer")


STEPS = (
    encoder_classifier,
    gpt,
    translation,
    masked_language_model,
    llama_adafactor,
    mixture_of_experts,
    capacity_experts,
    lstm_language_model,
    gru_tagger,
    lstm_cell_loop,
    ctc_speech,
    fast_text,
    skip_gram,
    greedy_generation,
)
