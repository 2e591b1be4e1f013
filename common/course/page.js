// The theme of all pages of the course, which the guide's pages share: localStorage 'theme'. A press on the button shows
// the next one; `changed` is called after each change. Returns what a press does.
const withTheme = (button, changed = () => {}) => {
  const themes = ["auto", "light", "dark"];
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }  // there may be no storage for files
  };
  let theme;
  const apply = (name) => {
    theme = themes.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = theme;
    button.textContent = (innerWidth > 760 ? "theme: " : "") + theme;
    changed();
  };
  const next = () => {
    apply(themes[(themes.indexOf(theme) + 1) % themes.length]);
    try { localStorage.setItem("theme", theme); } catch { /* it holds for this page then */ }
  };
  button.addEventListener("click", next);
  addEventListener("storage", (event) => { if (event.key === "theme") apply(event.newValue); });
  apply(stored());
  return next;
};
