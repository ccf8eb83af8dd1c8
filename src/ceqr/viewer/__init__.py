"""`ceqr watch`: a trained agent at play, with its doubt, as one page that needs no network.

record      runs opened, episodes played, what was believed in every frame
moments     where to look: the least certain and the most surprising frames
scenes      how an environment is drawn; pictures: screens of Gymnasium's, small
heat        beliefs about all cells of a maze, beside the truth
page        the page itself, with page.html, page.css and page.js
animation   the same as a GIF or an MP4
command     what `ceqr watch` does
"""
