"""How small may epsilon be, and how rare a fault? The tables of docs/results, from scratch."""
