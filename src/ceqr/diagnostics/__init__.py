"""`ceqr diagnose`: what the beliefs of trained agents are worth, measured on episodes that training never saw.

play         greedy episodes, some steps of each, and what the agent believes of them
measures     numbers with intervals: pure functions of arrays
ood          strange states: made of played ones, or from elsewhere; visits: what replay holds
disentangle  in mazes, where the truth is known: each uncertainty against both truths
exploration  what the agent did while it learned, from the tables of its run
subject      all of it for one seed
results      runs side by side: estimates, notes, JSON
tables       and figures: what is shown; page: page.html, in the frame of a report's
command      from run directories to a folder
"""
