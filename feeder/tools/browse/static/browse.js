// Keys: left and right turn pages, / goes to the search, which a page without a set has not.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) link.click();
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
  }
});
// The live page says so when its figures are old.
for (const [event, isOld] of [["htmx:sendError", true], ["htmx:responseError", true], ["htmx:timeout", true], ["htmx:afterSwap", false]]) {
  document.addEventListener(event, () => document.getElementById("lost")?.toggleAttribute("hidden", !isOld));
}
