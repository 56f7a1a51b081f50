// Keys: left and right turn pages, / goes to the search.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) link.click();
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]").focus();
  }
});

// A search that has found nothing yet goes on by itself.
const further = document.querySelector(".goes-on");
if (further) location.replace(further.href);

// Ticked samples: lists of id and key by name, which this browser keeps for each set; nothing is sent.
const bar = document.querySelector(".ticked");
if (bar) {
  const place = `feeder ${bar.dataset.set}`;
  let lists = {};
  const boxes = [...document.querySelectorAll("[data-id]")];
  const list = () => (lists[bar.tag.value] ??= {});
  let last = null;
  const filters = document.querySelector(".filters");
  const tags = filters.querySelector("[aria-label='ticked as']");
  const said = bar.querySelector("[role=status]");
  const numbered = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
  const idsOf = (name) => Object.keys(lists[name] ?? {}).join(",");

  const show = () => {
    lists = JSON.parse(localStorage.getItem(place) || "{}");  // other pages may have changed it
    const number = Object.keys(list()).length;
    bar.querySelector("output").value = numbered(number, "sample");
    for (const name of ["show", "keys", "ids", "save", "saveids", "clear"]) bar[name].disabled = !number;
    for (const box of boxes) box.checked = box.dataset.id in list();
    document.querySelector("#tags").replaceChildren(...Object.keys(lists).map((name) => new Option(name)));
    const names = Object.keys(lists).filter(idsOf);
    tags.replaceChildren(new Option("any", ""), ...names.map((name) => new Option(name)));
    tags.value = names.find((name) => idsOf(name) === filters.ids.value) ?? "";
    tags.parentElement.hidden = !names.length;
  };
  const keep = () => {
    for (const name in lists) if (!Object.keys(lists[name]).length) delete lists[name];
    localStorage.setItem(place, JSON.stringify(lists));
    localStorage.setItem(`${place} list`, bar.tag.value);
    show();
  };

  boxes.forEach((box, number) => {
    box.hidden = false;
    box.addEventListener("click", (event) => {
      lists = JSON.parse(localStorage.getItem(place) || "{}");
      const from = event.shiftKey && last !== null ? last : number;  // with shift: all from the last one to this
      for (const each of boxes.slice(Math.min(from, number), Math.max(from, number) + 1)) {
        if (box.checked) list()[each.dataset.id] = each.dataset.key;
        else delete list()[each.dataset.id];
      }
      last = number;
      keep();
    });
  });

  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    const ids = Object.keys(list()), keys = Object.values(list());
    const copy = (text, what) =>
      navigator.clipboard.writeText(text).then(
        () => (said.textContent = `Copied ${numbered(ids.length, what)}.`),
        () => (said.textContent = "Not copied: the browser does not allow it."),
      );
    const save = (text, name) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text]));
      link.download = name;
      link.click();
      said.textContent = `Saved ${name}.`;
    };
    const act = {
      show: () => location.assign(`/samples?ids=${ids.join(",")}`),
      keys: () => copy(keys.join("\n"), "key"),
      ids: () => copy(`[${ids.join(", ")}]`, "id"),
      save: () => save(keys.map((key) => `${key}\n`).join(""), `${bar.tag.value}.txt`),
      saveids: () => save(`[${ids.join(", ")}]\n`, `${bar.tag.value}-ids.json`),
      clear: () => {
        delete lists[bar.tag.value];
        keep();
      },
    }[event.submitter?.name];
    if (act) act();
  });
  bar.tag.value = localStorage.getItem(`${place} list`) || "ticked";
  bar.tag.addEventListener("change", keep);
  tags.addEventListener("change", () => {
    filters.ids.value = idsOf(tags.value);
    filters.ids.disabled = !filters.ids.value;
    filters.requestSubmit();
  });
  window.addEventListener("pageshow", show);
  window.addEventListener("storage", show);
  bar.hidden = false;
}
