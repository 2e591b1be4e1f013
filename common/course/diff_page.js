// Keys n and p go from hunk to hunk.
(() => {
  withTheme(document.getElementById("theme"));
  const hunks = [...document.querySelectorAll(".hunk")];
  const where = document.getElementById("where");
  if (!hunks.length) return;
  let here = -1;
  const show = (index) => {
    if (index === here) return;
    if (here >= 0) hunks[here].classList.remove("here");
    here = index;
    if (here >= 0) hunks[here].classList.add("here");
    where.textContent = (here + 1) + " / " + hunks.length;
  };
  const bar = document.querySelector(".bar");
  // The hunk below the bar; after a jump it is the one jumped to, though the page's end may keep it further down.
  let jumped = false;
  const follow = () => {
    if (jumped) { jumped = false; return; }
    let last = -1;
    hunks.forEach((hunk, index) => { if (hunk.getBoundingClientRect().top < bar.offsetHeight + 30) last = index; });
    show(last);
  };
  const go = (step) => {
    const index = Math.min(Math.max(here + step, 0), hunks.length - 1);
    const top = scrollY;
    hunks[index].scrollIntoView();
    jumped = scrollY !== top;
    show(index);
  };
  addEventListener("scroll", follow, { passive: true });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "n") go(1);
    if (event.key === "p") go(-1);
  });
  document.getElementById("next").addEventListener("click", () => go(1));
  document.getElementById("previous").addEventListener("click", () => go(-1));
  const folds = [...document.querySelectorAll("details")];
  document.getElementById("unfold").addEventListener("click", () => {
    const open = folds.some((fold) => !fold.open);
    folds.forEach((fold) => { fold.open = open; });
  });
  follow();
})();
