// Nothing is filled into a script: its hash lets it run, and whatever else says it is a script does not.
"use strict";
addEventListener("load", () => {
  const section = document.getElementById("pictures");
  const gutter = Number(section.dataset.gutter);
  const grids = [...section.querySelectorAll("figure")].map((figure) => ({
    label: figure.querySelector(".group").textContent,
    place: figure.className,
    count: figure.querySelector(".count"),
    rounds: [...figure.querySelectorAll(".round")].map((box) => ({
      box,
      number: Number(box.dataset.round),
      image: box.querySelector("img"),
      classes: box.dataset.classes ? box.dataset.classes.split(" ") : [],
      columns: Number(box.dataset.columns),
    })),
  })).filter((grid) => grid.rounds.every((round) => round.image));
  const all = grids.flatMap((grid) => grid.rounds);
  const dated = all.filter((round) => round.box.dataset.round);
  const numbers = [...new Set(dated.map((round) => round.number))].sort((a, b) => a - b);
  const names = [...new Set(all.flatMap((round) => round.classes))].sort((a, b) => a - b);
  const slider = section.querySelector("input");
  const buttons = new Map();
  let wanted = "all";

  function tiles(round, name) {
    return [...round.classes.keys()].filter((tile) => name === "all" || round.classes[tile] === name);
  }

  function element(kind, className, text) {
    return Object.assign(document.createElement(kind), {className, textContent: text});
  }

  function drawn(canvas, round, chosen) {
    const columns = Math.min(round.columns, round.classes.length);
    const across = (round.image.naturalWidth - gutter) / columns;
    const down = (round.image.naturalHeight - gutter) / Math.ceil(round.classes.length / columns);
    canvas.width = round.image.naturalWidth;
    canvas.height = chosen.length ? gutter + down * Math.ceil(chosen.length / columns) : 0;
    canvas.style.width = round.image.style.width;
    const corner = (place) => [across * (place % columns), down * Math.floor(place / columns)];
    const size = [across + gutter, down + gutter];
    chosen.forEach((tile, place) =>
      canvas.getContext("2d").drawImage(round.image, ...corner(tile), ...size, ...corner(place), ...size));
  }

  function show() {
    const number = numbers[slider.value];
    const present = grids.map((grid) => {
      const shown = grid.rounds.findLast((round) => round.number <= number) ?? grid.rounds[0];
      grid.rounds.forEach((round) => { round.box.hidden = round !== shown; });
      return shown;
    });
    slider.setAttribute("aria-valuetext", `round ${number}`);
    section.querySelector("output").textContent = number ?? "";
    present.forEach((round, index) => {
      if (!round.classes.length) return;
      const chosen = tiles(round, wanted);
      round.canvas ??= round.image.parentNode.insertBefore(element("canvas", "", ""), round.image);
      round.canvas.hidden = wanted === "all";
      round.image.hidden = wanted !== "all";
      round.canvas.setAttribute("role", "img");
      round.canvas.setAttribute("aria-label", `${round.image.alt}, class ${wanted}`);
      if (wanted !== "all") drawn(round.canvas, round, chosen);
      const of = wanted === "all" ? "images" : `of ${round.classes.length}`;
      grids[index].count.textContent = `${chosen.length} ${of}`;
    });
    buttons.forEach((button, name) => {
      const counts = present.map((round) => tiles(round, name).length);
      const parts = counts.map((count, index) => element("span", `figure ${grids[index].place}`, count));
      button.replaceChildren(element("b", "", name), ...parts);
      button.setAttribute("aria-pressed", name === wanted);
      const spoken = counts.map((count, index) => `${count} ${grids[index].label}`);
      button.setAttribute("aria-label", [name === "all" ? name : `class ${name}`, ...spoken].join(", "));
    });
  }

  ["all", ...names].forEach((name) => {
    const button = Object.assign(element("button", "", ""), {type: "button"});
    button.addEventListener("click", () => { wanted = name; show(); });
    buttons.set(name, button);
  });
  section.querySelector(".classes").append(...buttons.values());
  section.querySelector(".classes").hidden = names.length === 0;
  slider.max = slider.value = numbers.length - 1;
  slider.addEventListener("input", show);
  section.querySelector(".rounds").hidden = numbers.length < 2;
  if (grids.length) show();
});
