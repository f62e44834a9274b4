"use strict";
// Answers as people read them: the tokens that marked finds in a text, made into elements one by one. No text ever becomes HTML.

const LINKS = /^(https?:|mailto:)/i;

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** A text in which entities are written out, as marked leaves them. */
function plain(text) {
  // A letter before it keeps the parser from dropping white space.
  return new DOMParser().parseFromString(`x${text.replace(/</g, "&lt;")}`, "text/html").documentElement.textContent.slice(1);
}

function inline(tokens) {
  return (tokens || []).map((token) => {
    switch (token.type) {
      case "strong":
        return element("strong", {}, ...inline(token.tokens));
      case "em":
        return element("em", {}, ...inline(token.tokens));
      case "del":
        return element("del", {}, ...inline(token.tokens));
      case "codespan":
        return element("code", { textContent: token.text });
      case "br":
        return element("br", {});
      case "link":
        // An address that could run something is shown, not linked.
        if (!LINKS.test(token.href)) return document.createTextNode(token.raw);
        return element("a", { href: token.href, rel: "noreferrer noopener", target: "_blank" }, ...inline(token.tokens));
      case "text":
        return token.tokens ? element("span", {}, ...inline(token.tokens)) : document.createTextNode(plain(token.text));
      case "escape":
        return document.createTextNode(plain(token.text));
      default:
        // HTML, pictures and whatever else: as it was written.
        return document.createTextNode(token.raw);
    }
  });
}

function code(token) {
  const copy = element("button", { type: "button", className: "copy", textContent: "Copy" });
  copy.addEventListener("click", () => copied(copy, token.text));
  const words = token.lang ? [element("span", { className: "language", textContent: token.lang })] : [];
  return element("div", { className: "code" }, element("div", { className: "bar" }, ...words, copy), element("pre", {}, element("code", { textContent: token.text })));
}

/** Puts a text on the clipboard, and says so on the button for a moment. */
async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function table(token) {
  const row = (name, cells) => element("tr", {}, ...cells.map((cell) => element(name, {}, ...inline(cell.tokens))));
  const body = token.rows.map((cells) => row("td", cells));
  return element("div", { className: "wide" }, element("table", {}, element("thead", {}, row("th", token.header)), element("tbody", {}, ...body)));
}

function blocks(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "space":
      case "def":
        return [];
      case "heading":
        return [element(`h${Math.min(6, token.depth + 2)}`, {}, ...inline(token.tokens))];
      case "paragraph":
        return [element("p", {}, ...inline(token.tokens))];
      case "text":
        return token.tokens ? inline(token.tokens) : [document.createTextNode(plain(token.text))];
      case "code":
        return [code(token)];
      case "blockquote":
        return [element("blockquote", {}, ...blocks(token.tokens))];
      case "hr":
        return [element("hr", {})];
      case "table":
        return [table(token)];
      case "list": {
        const items = token.items.map((item) => element("li", {}, ...blocks(item.tokens)));
        return [element(token.ordered ? "ol" : "ul", token.ordered ? { start: token.start || 1 } : {}, ...items)];
      }
      default:
        return [element("p", { textContent: token.raw })];
    }
  });
}

/** The elements of a text in Markdown. */
function markdown(text) {
  return blocks(marked.lexer(text));
}
