"""`python examples/molecules.py`: graphs in packs with two capacities, nodes and edges, through message passing."""

import torch
from torch.nn.functional import pad

import nopad

NODES, EDGES = 64, 140  # of a pack; every pack has these shapes, so that one compiled graph serves them all
torch.manual_seed(0)


def molecule(atoms, rings):
    """Return one graph: features of its atoms [n, 8], and each bond in both directions: its ends [2, e], features."""
    chain = [(int(torch.randint(max(0, at - 3), at, ())), at) for at in range(1, atoms)]
    bonds = torch.tensor(chain + [tuple(torch.randperm(atoms)[:2].tolist()) for _ in range(rings)]).T
    return {
        "atoms": torch.randn(atoms, 8),
        "ends": torch.cat([bonds, bonds.flip(0)], 1),
        "bonds": torch.randn(2 * bonds.shape[1], 4),
    }


class Network(torch.nn.Module):
    """Three rounds of messages along bonds, then one number for each graph."""

    def __init__(self):
        """Build the layers."""
        super().__init__()
        self.atom, self.bond = torch.nn.Linear(8, 32), torch.nn.Linear(4, 32)
        self.rounds = torch.nn.ModuleList(torch.nn.Linear(64, 32) for _ in range(3))
        self.read = torch.nn.Linear(32, 1)

    def forward(self, atoms, ends, bonds, graph, graphs):
        """Return [graphs, 1]; `graph` [n] says which graph each atom is of."""
        states, along = self.atom(atoms), self.bond(bonds)
        for layer in self.rounds:
            messages = torch.relu(states[ends[0]] + along)
            heard = torch.zeros_like(states).index_add(0, ends[1], messages)
            states = states + torch.relu(layer(torch.cat([states, heard], 1)))
        return self.read(states.new_zeros(graphs, 32).index_add(0, graph, states))


def alone(model, one):
    """Return the result of one graph."""
    return model(**one, graph=torch.zeros(len(one["atoms"]), dtype=torch.long), graphs=1)[0]


def size(one):
    """Return a graph's two sizes."""
    return len(one["atoms"]), one["ends"].shape[1]


def block(graphs):
    """Return one pack, block-diagonal: atoms follow each other, bonds are shifted to theirs; padding is a graph too."""
    counts = torch.tensor([size(one)[0] for one in graphs])
    starts = (counts.cumsum(0) - counts).tolist()
    atoms, bonds = (torch.cat([one[name] for one in graphs]) for name in ("atoms", "bonds"))
    ends = torch.cat([one["ends"] + start for one, start in zip(graphs, starts, strict=True)], 1)
    owner = torch.repeat_interleave(torch.arange(len(graphs)), counts)
    more, room = NODES + 1 - len(atoms), EDGES - len(bonds)  # one atom at least that bonds of padding may join
    return {
        "atoms": pad(atoms, (0, 0, 0, more)),
        "ends": pad(ends, (0, room), value=NODES),
        "bonds": pad(bonds, (0, 0, 0, room)),
        "graph": pad(owner, (0, more), value=len(graphs)),
        "graphs": len(graphs) + 1,
    }


def packed(model, graphs):
    """Return the result of each graph."""
    found = [None] * len(graphs)
    for pack in nopad.pack_several([size(one) for one in graphs], [(NODES, EDGES)])[NODES, EDGES]:
        for number, result in zip(pack, model(**block([graphs[at] for at in pack])), strict=False):
            found[number] = result
    return found


model = Network().eval()
graphs = [molecule(*drawn) for drawn in zip(torch.randint(3, 40, (60,)).tolist(), [0, 1, 2, 6] * 15, strict=True)]
sizes = torch.tensor([size(one) for one in graphs])
before = 1 - sizes.sum(0) / (len(sizes) * sizes.max(0).values)
packs = sum(nopad.plan_several(sizes.tolist(), [(NODES, EDGES)]).packs.values())
after = 1 - sizes.sum(0) / (packs * torch.tensor([NODES, EDGES]))
print(f"{len(graphs)} graphs: padding {before[0]:.1%} of nodes, {before[1]:.1%} of edges at the size of the largest,")
print(f"{after[0]:.1%} and {after[1]:.1%} in {packs} packs; packing factor {len(graphs) / packs:.2f}")
print(nopad.audit_samples(model, graphs[:8], alone=alone, packed=packed))
