// Opens, closes and filters the groups of ranks of a comparison. Without it the page is complete.
(() => {
const groups = [...document.querySelectorAll("details.pairs")];
const all = (open) => groups.forEach((group) => { if (!group.hidden) group.open = open; });
/** The ranks of a text such as "0-3,7"; null if it names none. */
const ranksOf = (text) => {
  const ranges = [...text.matchAll(/(\d+)(?:\s*-\s*(\d+))?/g)].map(([, first, last]) => [Number(first), Number(last || first)]);
  return ranges.length ? (rank) => ranges.some(([first, last]) => first <= rank && rank <= last) : null;
};
const filter = (text) => {
  const wanted = ranksOf(text);
  for (const group of groups) group.hidden = wanted !== null && !group.dataset.ranks.split(",").some((rank) => wanted(Number(rank)));
  const shown = groups.filter((group) => !group.hidden).length;
  $("shown").textContent = wanted === null ? "" : shown ? `${shown} of ${groups.length} groups` : "no such rank differs";
};
/** Opens what the address of the page names: #rank-3, in whatever group the rank is. */
const follow = () => {
  const rank = /^#rank-(\d+)$/.exec(location.hash);
  const group = rank && groups.find((each) => each.dataset.ranks.split(",").includes(rank[1]));
  if (group) { group.open = true; group.scrollIntoView(); }
};
if (groups.length) {
  $("open-all").addEventListener("click", () => all(true));
  $("close-all").addEventListener("click", () => all(false));
  $("ranks-filter").addEventListener("input", (event) => filter(event.target.value));
}
addEventListener("keydown", (event) => {
  if (!event.target.closest("input") && !event.ctrlKey && !event.metaKey && !event.altKey && event.key === "d") turn();
});
addEventListener("hashchange", follow);
let before = [];
addEventListener("beforeprint", () => { before = groups.map((group) => group.open); all(true); });
addEventListener("afterprint", () => groups.forEach((group, at) => { group.open = before[at]; }));
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
follow();
root.dataset.ready = "yes";
})();
