// Values of the lines under the pointer, or under the arrow keys of a panel that has the focus.
(() => {
  const tip = document.getElementById("tip");
  const number = (v) => {
    if (v === null || v === undefined) return "–";
    if (v !== 0 && Math.abs(v) < 1e-3) return v.toPrecision(2);
    return v.toLocaleString("en", { maximumSignificantDigits: Math.abs(v) >= 1e4 ? 21 : 4, maximumFractionDigits: 3 });
  };
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const hide = (svg) => {
    tip.hidden = true;
    svg.querySelector(".cursor").setAttribute("visibility", "hidden");
  };

  for (const svg of document.querySelectorAll("svg[data-panel]")) {
    const panel = JSON.parse(svg.dataset.panel);
    const { low, high, left, right, label } = panel.x;
    const xs = panel.lines[0].x;
    const cursor = svg.querySelector(".cursor");
    let at = xs.length - 1;

    const show = (index) => {
      at = Math.max(0, Math.min(xs.length - 1, index));
      const x = xs[at];
      const across = left + ((x - low) / (high - low)) * (right - left);
      cursor.setAttribute("x1", across);
      cursor.setAttribute("x2", across);
      cursor.setAttribute("visibility", "visible");
      const head = document.createElement("b");
      head.textContent = `${label}: ${number(x)}`;
      const rows = panel.lines.map((line) => {
        const row = document.createElement("div");
        const value = document.createElement("span");
        const key = document.createElement("i");
        const name = document.createElement("em");
        const i = nearest(line.x, x);
        key.className = line.style;
        name.textContent = line.label;
        const bounds = line.low && line.low[i] !== null ? ` [${number(line.low[i])}, ${number(line.high[i])}]` : "";
        value.textContent = number(line.y[i]) + bounds;
        row.append(key, name, value);
        return row;
      });
      tip.replaceChildren(head, ...rows);
      tip.hidden = false;
      const box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      const wide = tip.offsetWidth;
      let x0 = box.left + across * scale + 14;
      if (x0 + wide > document.documentElement.clientWidth - 6) x0 = box.left + across * scale - wide - 14;
      tip.style.left = `${Math.max(6, x0) + window.scrollX}px`;
      tip.style.top = `${box.top + 8 * scale + window.scrollY}px`;
    };

    const follow = (event) => {
      const box = svg.getBoundingClientRect();
      const across = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      show(nearest(xs, low + ((across - left) / (right - left)) * (high - low)));
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) hide(svg); });
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(at); });
    svg.addEventListener("blur", () => hide(svg));
    svg.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? Math.max(1, Math.round(xs.length / 20)) : 1;
      const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: xs.length - 1 }[event.key];
      if (event.key === "Escape") hide(svg);
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }

  // On paper nothing can be opened: tables are printed with their figures.
  const closed = [];
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details:not([open])")) {
      each.open = true;
      closed.push(each);
    }
  });
  addEventListener("afterprint", () => { for (const each of closed.splice(0)) each.open = false; });
})();
