"""The grids of both mazes: what is where. Pure Python and NumPy; what a step does is in `model.py`.

`traps` is a labyrinth of `size` x `size` rooms, after the paper's Figure 1. It is grown at random, from a seed that
follows from layout and size, as a tree: between any two rooms there is exactly one way. Then one wall is opened, the
one that saves most steps between start and goal, and traps are set where only those walk who take the shortcut: as many
as take back, on average, nearly all that it saves. Of the tree's other branches, which lead nowhere, every other one
holds a trap, too. So every labyrinth has

- an ambiguous fork: a short way past traps and a long one without. On average the short way is better, but by less
  than two steps. That is the price of a step into the long way and back, so that an agent which learns returns of what
  is best on average, and acts with aversion to risk, can prefer the long way;
- places of noise that are known well (the shortcut's traps, to whoever takes it), places without noise that are hardly
  known (branches without a trap, which nobody enters who knows the way), places of both, and of neither.

`cliff` is the gridworld of the UA-DQN paper: start and goal in the corners of the lowest row, an abyss between them.
"""

import math
import random
from collections import deque
from collections.abc import Collection
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Kind(IntEnum):
    """What a place of the grid is. One enters neither walls nor, but to end there, goal and cliff."""

    WALL = 0
    FLOOR = 1
    START = 2
    GOAL = 3
    TRAP = 4
    CLIFF = 5
    EDGE = 6  # floor at the brink of the cliff, where the wind blows


Place = tuple[int, int]  # row, column
Tree = dict[Place, list[Place]]

LAYOUTS = 5
OFFSET = 35  # of seeds whose first five labyrinths look least alike
STEP, GOAL, TRAP, SPRING = -0.1, 2.0, -1.0, 0.25  # rewards of a labyrinth, and the chance that a trap springs
FEWEST_SAVED = 8  # steps that the shortcut saves
LONGEST = 2  # rooms of the long way, for each room a side: longer ones are seldom found by an agent
FEWEST_BRANCHES = 2  # that lead nowhere; every other one holds a trap
MARGIN = (0.2, 1.8)  # steps that it is better by, on average, traps included
DISCOUNTS = (0.99, 1.0)  # for which that is so


def cliff(width: int, height: int) -> np.ndarray:
    """The windy cliff as kinds [height + 1, width]; below the lowest row, the abyss."""
    grid = np.full((height + 1, width), Kind.FLOOR, np.int8)
    grid[height - 1, 1:-1] = Kind.EDGE
    grid[height - 1, 0], grid[height - 1, -1] = Kind.START, Kind.GOAL
    grid[height] = Kind.CLIFF
    grid[height, 0] = grid[height, -1] = Kind.WALL
    return grid


def traps(layout: int, size: int) -> np.ndarray:
    """A labyrinth as kinds [2 size + 1, 2 size + 1]; the same for the same layout and size, everywhere."""
    # Of Python's generator only `random()` promises the same numbers in every version.
    generator = random.Random(1_000 * size + OFFSET + layout)
    while True:
        tree = _grow(size, generator)
        for goal in sorted(tree, key=lambda _: generator.random()):
            grid = _with_goal(tree, size, goal, generator)
            if grid is not None:
                return grid


def _with_goal(tree: Tree, size: int, goal: Place, generator: random.Random) -> np.ndarray | None:
    """The labyrinth of a tree with its goal in a room; None if there is none as it should be."""
    if len(tree[goal]) > 1 or goal == (0, 0):
        return None  # what lies behind the goal could not be reached
    long = _way(tree, (0, 0), [goal])
    shortcut = _shortcut(tree, size, long) if len(long) <= LONGEST * size else None
    if shortcut is None:
        return None
    ways = {*long, *(room for room in tree if _places([room])[0] in shortcut.places)}
    ends = [room for room in sorted(tree) if len(tree[room]) == 1 and room not in ways]
    branches = [_places(_way(tree, end, ways))[1:-1] for end in ends]
    if len(branches) < FEWEST_BRANCHES:
        return None
    noisy = [branch[int(generator.random() * len(branch))] for branch in branches[::2]]
    return _draw(tree, size, goal, shortcut, noisy)


def _neighbours(room: Place, size: int) -> list[Place]:
    row, column = room
    around = [(row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)]
    return [(r, c) for r, c in around if 0 <= r < size and 0 <= c < size]


def _grow(size: int, generator: random.Random) -> Tree:
    """A random spanning tree of the rooms: on to any new room from the last one that has one beside it."""
    tree: Tree = {(r, c): [] for r in range(size) for c in range(size)}
    way = [(0, 0)]
    seen = {(0, 0)}
    while way:
        new = [room for room in _neighbours(way[-1], size) if room not in seen]
        if not new:
            way.pop()
            continue
        room = new[int(generator.random() * len(new))]
        tree[way[-1]].append(room)
        tree[room].append(way[-1])
        seen.add(room)
        way.append(room)
    return tree


def _way(tree: Tree, start: Place, ends: Collection[Place]) -> list[Place]:
    """The rooms from one to the nearest of some others, both included."""
    came: dict[Place, Place] = {start: start}
    queue = deque([start])
    while queue[0] not in ends:
        room = queue.popleft()
        for following in tree[room]:
            if following not in came:
                came[following] = room
                queue.append(following)
    rooms = [queue[0]]
    while rooms[-1] != start:
        rooms.append(came[rooms[-1]])
    return rooms[::-1]


class Shortcut(NamedTuple):
    """Where a wall is opened, and what that is good for."""

    places: list[Place]  # those of the shortcut alone
    traps: list[int]  # which of them hold a trap
    saved: int  # steps


def _shortcut(tree: Tree, size: int, long: list[Place]) -> Shortcut | None:
    """The shortcut that saves most steps, with as many traps as take back nearly all of it; None if there is none."""
    index = {room: i for i, room in enumerate(long)}
    best = None
    for one in sorted(tree):
        for other in _neighbours(one, size):
            if other in tree[one]:
                continue
            # From both sides of the wall to where they meet the long way.
            before, after = _way(tree, one, index), _way(tree, other, index)
            begin, end = index[before[-1]], index[after[-1]]
            saved = 2 * (end - begin - (len(before) + len(after) - 1))
            if begin == 0 or saved < FEWEST_SAVED or (best is not None and saved <= best.saved):
                continue
            places = _places(before[::-1] + after)[1:-1]
            count = math.ceil(saved * STEP / (SPRING * TRAP)) - 1
            if not 0 < count <= len(places):
                continue
            traps = [i * len(places) // count for i in range(count)]  # spread evenly
            left = 2 * (len(long) - 1 - end)  # steps to the goal from where the ways meet
            if all(MARGIN[0] < _margin(len(places), traps, saved, left, d) < MARGIN[1] for d in DISCOUNTS):
                best = Shortcut(places, traps, saved)
    return best


def _margin(length: int, traps: list[int], saved: int, left: int, discount: float) -> float:
    """By how many steps the shortcut is better than the long way, on average, where both begin."""

    def walk(steps: int) -> float:
        return sum(STEP * discount**i for i in range(steps)) + GOAL * discount ** (steps - 1)

    steps = length + 1 + left
    sprung = sum(SPRING * TRAP * discount**i for i in traps)
    return (walk(steps) + sprung - walk(steps + saved)) / -STEP


def _places(rooms: list[Place]) -> list[Place]:
    """The places of the grid along rooms, with the doors between them."""
    grid = [(2 * r + 1, 2 * c + 1) for r, c in rooms]
    doors = [((a[0] + b[0]) // 2, (a[1] + b[1]) // 2) for a, b in pairwise(grid)]
    return [place for pair in zip(grid, [*doors, grid[-1]], strict=True) for place in pair][:-1]


def _draw(tree: Tree, size: int, goal: Place, shortcut: Shortcut, noisy: list[Place]) -> np.ndarray:
    grid = np.full((2 * size + 1, 2 * size + 1), Kind.WALL, np.int8)
    for one, others in tree.items():
        for other in others:
            for place in _places([one, other]):
                grid[place] = Kind.FLOOR
    for place in shortcut.places:
        grid[place] = Kind.FLOOR
    for place in [*(shortcut.places[i] for i in shortcut.traps), *noisy]:
        grid[place] = Kind.TRAP
    grid[1, 1], grid[_places([goal])[0]] = Kind.START, Kind.GOAL
    return grid
