"use strict";
// What every page has: light or dark, and elements made without markup. Text of logs only ever becomes text nodes or pixels.
const $ = (id) => document.getElementById(id);
const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child === null || child === undefined ? "" : child)));
  return node;
};
const root = document.documentElement;
const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
let paint = () => {}; // draws what depends on the theme
const theme = (name) => {
  root.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "light mode" : "dark mode";
  paint();
};
const turn = () => theme(root.dataset.theme === "dark" ? "light" : "dark");
$("theme").addEventListener("click", turn);
