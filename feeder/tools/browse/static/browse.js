// Keys: left and right turn pages, / goes to the search.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) link.click();
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]").focus();
  }
});
