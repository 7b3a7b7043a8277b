// TeX's formulas as MathML, which the browser draws. What is not known here is an error, and the page then shows the source.

const MATH = "http://www.w3.org/1998/Math/MathML";
const DEEPEST = 60;

const words = (text) => text.trim().split(/\s+/);
const table = (text) => {
  const found = words(text);
  return new Map(Array.from({ length: found.length / 2 }, (_, i) => [found[2 * i], found[2 * i + 1]]));
};

const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ
  lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ
  omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω ell ℓ hbar ℏ imath ı jmath ȷ
  partial ∂ nabla ∇ infty ∞ emptyset ∅ varnothing ∅ Re ℜ Im ℑ aleph ℵ wp ℘ angle ∠ degree ° triangle △ square □ blacksquare ■
  bot ⊥ top ⊤ forall ∀ exists ∃ nexists ∄ dots … ldots … cdots ⋯ vdots ⋮ ddots ⋱ S § checkmark ✓ prime ′ clubsuit ♣ heartsuit ♡
  % % # # $ $ & & _ _`);
const OPERATORS = table(`times × div ÷ pm ± mp ∓ cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙ wedge ∧ land ∧
  vee ∨ lor ∨ cap ∩ cup ∪ setminus ∖ neg ¬ lnot ¬ le ≤ leq ≤ leqslant ⩽ ge ≥ geq ≥ geqslant ⩾ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼
  simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ prec ≺ succ ≻ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ subsetneq ⊊ supset ⊃ supseteq ⊇ mid ∣
  nmid ∤ parallel ∥ perp ⊥ vdash ⊢ models ⊨ to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹ Leftarrow ⇐
  impliedby ⟸ Leftrightarrow ⇔ iff ⟺ mapsto ↦ longrightarrow ⟶ longleftarrow ⟵ hookrightarrow ↪ uparrow ↑ downarrow ↓ rightharpoonup ⇀
  rightleftharpoons ⇌ therefore ∴ because ∵ colon : coloneqq ≔ asymp ≍ doteq ≐ triangleq ≜ nearrow ↗ searrow ↘ dagger † backslash \\ gt > lt < lesssim ≲ gtrsim ≳
  Longrightarrow ⟹ Longleftarrow ⟸ Longleftrightarrow ⟺ longleftrightarrow ⟷ longmapsto ⟼ Uparrow ⇑ Downarrow ⇓ leadsto ⇝ rightsquigarrow ⇝
  diamond ⋄ bigcirc ◯ complement ∁ ltimes ⋉ rtimes ⋊ lhd ⊲ rhd ⊳ sqsubseteq ⊑ preceq ⪯ succeq ⪰ nsubseteq ⊈ upharpoonright ↾ swarrow ↙ nwarrow ↖`);
const LARGE = table("sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀");
const INTEGRALS = table("int ∫ iint ∬ iiint ∭ oint ∮");
const LIMITS = new Set(words("lim max min sup inf limsup liminf det gcd lcm Pr argmax argmin"));
const FUNCTIONS = new Set(words("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp dim ker deg arg hom"));
const BRACKETS = table(`lbrace { rbrace } { { } } lbrack [ rbrack ] langle ⟨ rangle ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ vert | lvert | rvert |
  Vert ‖ lVert ‖ rVert ‖ | ‖ backslash \\ uparrow ↑ downarrow ↓`);
const ACCENTS = table(`hat ^ widehat ^ bar ¯ vec → overrightarrow → tilde ~ widetilde ~ dot ˙ ddot ¨ check ˇ breve ˘ acute ´ grave \`
  mathring ˚ overbrace ⏞`);
const UNDER = table("underbrace ⏟");
// Lines around or through an argument, which are drawn by classes.
const LINES = new Set(words("overline underline boxed fbox cancel bcancel xcancel sout"));
const SIZES = new Set(words("tiny small normalsize large Large LARGE huge Huge nonumber notag displaylimits relax"));
const SPACES = new Map([[",", 0.167], [":", 0.222], [">", 0.222], [";", 0.278], ["!", -0.167], [" ", 0.25], ["quad", 1], ["qquad", 2], ["enspace", 0.5], ["thinspace", 0.167]]);
const TEXTS = new Map([["text", ""], ["textrm", ""], ["textnormal", ""], ["mbox", ""], ["mathrm", ""], ["operatorname", ""], ["textbf", "bold"], ["textit", "italic"], ["texttt", "mono"], ["textsf", "sans"]]);
const FONTS = new Map([["mathbf", "bold"], ["boldsymbol", "bold"], ["bm", "bold"], ["mathcal", "script"], ["mathscr", "script"], ["mathfrak", "fraktur"], ["mathbb", "double"], ["mathsf", "sans"], ["mathtt", "mono"], ["mathit", "italic"]]);
// Where Unicode has the letters and digits of an alphabet, and the letters that it has elsewhere.
const ALPHABETS = {
  bold: [0x1d400, 0x1d7ce, ""], script: [0x1d49c, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"], fraktur: [0x1d504, 0, "CℭHℌIℑRℜZℨ"],
  double: [0x1d538, 0x1d7d8, "CℂHℍNℕPℙQℚRℝZℤ"], sans: [0x1d5a0, 0x1d7e2, ""], mono: [0x1d670, 0x1d7f6, ""], italic: [0x1d434, 0, "hℎ"],
};
const TABLES = { matrix: "  ", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", smallmatrix: "  ", cases: "{ ", array: "  ", aligned: "  ", align: "  ", "align*": "  ", split: "  ", gathered: "  ", gather: "  ", "gather*": "  ", equation: "  ", "equation*": "  " };
const TOKEN = /\\[a-zA-Z]+\*?|\\[^]|\s+|[^]/gu;

function math(tag, attributes, ...children) {
  const node = document.createElementNS(MATH, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Letters and digits of another alphabet.
function inFont(text, font) {
  const [letters, digits, elsewhere] = ALPHABETS[font];
  return [...text].map((one) => {
    const [at, code] = [elsewhere.indexOf(one), one.codePointAt(0)];
    if (at >= 0) return elsewhere[at + 1];
    if (/[A-Z]/.test(one)) return String.fromCodePoint(letters + code - 65);
    if (/[a-z]/.test(one)) return String.fromCodePoint(letters + 26 + code - 97);
    if (/[0-9]/.test(one) && digits) return String.fromCodePoint(digits + code - 48);
    if (font === "bold" && /[α-ω]/.test(one)) return String.fromCodePoint(0x1d6c2 + code - 0x3b1);
    return one;
  }).join("");
}

// The node with its letters and digits in another alphabet, or upright.
function restyled(node, font) {
  for (const leaf of node.matches("mi, mn, mo") ? [node] : node.querySelectorAll("mi, mn, mo")) {
    if (font) leaf.textContent = inFont(leaf.textContent, font);
    else if (leaf.localName === "mi") leaf.setAttribute("mathvariant", "normal");
  }
  return node;
}

// A formula of chemistry, as `2 H2 + O2 -> 2 H2O` or `SO4^2-`, in TeX.
const chemistry = (text) => text.replace(/<=>/g, "\\rightleftharpoons ").replace(/->/g, "\\rightarrow ").replace(/<-/g, "\\leftarrow ").replace(/([A-Za-z)\]])(\d+)/g, "$1_{$2}").replace(/\^(\d*[+-])/g, "^{$1}").replace(/([A-Za-z)\]}])([+-])(?=\s|$)/g, "$1^{$2}");

class Formula {
  constructor(source, depth = 0) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
    this.depth = depth;
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at++;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new SyntaxError("the formula ends too early");
    this.at++;
    return token;
  }

  expect(wanted) {
    const found = this.next();
    if (found !== wanted) throw new SyntaxError(`expected ${wanted}, found ${found}`);
  }

  // The text between braces, as it is.
  raw() {
    if (this.peek() !== "{") return this.next();
    let [text, open] = ["", 0];
    do {
      const token = this.tokens[this.at++];
      if (token === undefined) throw new SyntaxError("a brace is open");
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      text += token;
    } while (open);
    return text.slice(1, -1);
  }

  // Everything up to one of these tokens, which stays.
  row(...ends) {
    if (++this.depth > DEEPEST) throw new RangeError("the formula is too deep");
    const items = [];
    for (let token; (token = this.peek()) !== undefined && !ends.includes(token); ) {
      if (/^\\(rm|bf|it|sf|tt|cal)$/.test(token)) {
        this.next();
        items.push(restyled(this.row(...ends), { rm: "", bf: "bold", it: "italic", sf: "sans", tt: "mono", cal: "script" }[token.slice(1)]));
      } else if (/^\\(displaystyle|textstyle|scriptstyle)$/.test(token)) {
        this.next();
        items.push(math("mstyle", { displaystyle: String(token === "\\displaystyle"), scriptlevel: token === "\\scriptstyle" ? 1 : 0 }, this.row(...ends)));
      } else items.push(this.scripted());
    }
    this.depth--;
    return items.length === 1 ? items[0] : math("mrow", {}, ...items);
  }

  group() {
    this.expect("{");
    const row = this.row("}");
    this.expect("}");
    return row;
  }

  argument() {
    return this.peek() === "{" ? this.group() : this.atom(true);
  }

  optional() {
    if (this.peek() !== "[") return undefined;
    this.next();
    const row = this.row("]");
    this.expect("]");
    return row;
  }

  // An atom with what stands below and above it.
  scripted() {
    const base = /^[_^']$/.test(this.peek()) ? math("mrow", {}) : this.atom(false);
    let [below, above, limits] = [undefined, [], base.limits ?? "no"];
    for (;;) {
      const token = this.peek();
      if (token === "\\limits" || token === "\\nolimits") limits = token === "\\limits" ? "yes" : "no";
      else if (token === "'") above.push(math("mo", {}, "′"));
      else if (token !== "_" && token !== "^") break;
      this.next();
      if (token === "_" && below) throw new SyntaxError("two subscripts");
      if (token === "_") below = this.argument();
      if (token === "^") above.push(this.argument());
    }
    const over = above.length > 1 ? math("mrow", {}, ...above) : above[0];
    if (!below && !over) return base;
    const tag = limits === "no" ? ["msub", "msup", "msubsup"] : ["munder", "mover", "munderover"];
    return math(tag[below && over ? 2 : over ? 1 : 0], {}, base, ...[below, over].filter(Boolean));
  }

  atom(isArgument) {
    const token = this.next();
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (token === "{") {
      this.at--;
      return this.group();
    }
    if (/[0-9]/.test(token)) {
      let number = token;
      while (!isArgument && /^[0-9.]$/.test(this.tokens[this.at] ?? "")) number += this.tokens[this.at++];
      // A full stop after a number ends a sentence.
      if (number.endsWith(".")) this.at--, (number = number.slice(0, -1));
      return math("mn", {}, number);
    }
    if (/[}&\\#%]/.test(token)) throw new SyntaxError(`${token} stands alone`);
    if (token === "~") return math("mspace", { width: "0.25em" });
    if (/\p{L}/u.test(token)) return math("mi", {}, token);
    if (token === "-") return math("mo", {}, "−");
    if (token === "*") return math("mo", {}, "∗");
    return math("mo", /[|()[\]/]/.test(token) ? { stretchy: "false" } : {}, token);
  }

  bracket() {
    const token = this.next();
    if (token === ".") return "";
    const found = token[0] === "\\" ? BRACKETS.get(token.slice(1)) : token === "<" ? "⟨" : token === ">" ? "⟩" : token;
    if (!found || !/^[()[\]{}|/\\⟨⟩⌈⌉⌊⌋‖↑↓]$/u.test(found)) throw new SyntaxError(`${token} is no bracket`);
    return found;
  }

  command(name) {
    const limited = (node) => Object.assign(node, { limits: "yes" });
    if (LETTERS.has(name)) return math("mi", /^[A-ZΑ-Ω]/.test(name) ? { mathvariant: "normal" } : {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return math("mo", {}, OPERATORS.get(name));
    if (LARGE.has(name)) return limited(math("mo", { movablelimits: "true", largeop: "true" }, LARGE.get(name)));
    if (INTEGRALS.has(name)) return math("mo", { largeop: "true" }, INTEGRALS.get(name));
    if (LIMITS.has(name)) return limited(math("mo", { movablelimits: "true", lspace: "0.167em", rspace: "0.167em" }, name.replace(/^(lim|arg)(?=.)/, "$1 ")));
    if (FUNCTIONS.has(name)) return math("mrow", {}, math("mi", {}, name), math("mspace", { width: "0.167em" }));
    if (BRACKETS.has(name)) return math("mo", { stretchy: "false" }, BRACKETS.get(name));
    if (SPACES.has(name)) return math("mspace", { width: `${SPACES.get(name)}em` });
    if (TEXTS.has(name.replace("*", ""))) {
      const font = TEXTS.get(name.replace("*", ""));
      const source = this.raw();
      const isMath = /^(mathrm|operatorname)/.test(name);
      if (isMath && /[_^\\]/.test(source)) return Object.assign(this.upright(source), name.endsWith("*") ? { limits: "yes" } : {});
      const text = source.replace(/\\([$%&#_{}])/g, "$1").replace(/~/g, " ");
      const node = math(isMath ? "mi" : "mtext", { mathvariant: "normal" }, font ? inFont(text, font) : text.replace(/^ | $/g, "\u00a0"));
      return name.endsWith("*") ? limited(node) : node;
    }
    if (FONTS.has(name)) {
      return restyled(this.argument(), FONTS.get(name));
    }
    if (LINES.has(name)) return math("mrow", { class: name.replace("fbox", "boxed") }, this.argument());
    if (SIZES.has(name)) return math("mrow", {});
    if (ACCENTS.has(name)) return Object.assign(math("mover", { accent: "true" }, this.argument(), math("mo", { stretchy: String(/^(over|wide)/.test(name)) }, ACCENTS.get(name))), name === "overbrace" ? { limits: "yes" } : {});
    if (UNDER.has(name)) return limited(math("munder", { accentunder: "true" }, this.argument(), math("mo", { stretchy: "true" }, UNDER.get(name))));
    if (/^[dtc]?frac$/.test(name)) {
      const parts = [this.argument(), this.argument()];
      const node = math("mfrac", {}, ...parts);
      return name === "frac" ? node : math("mstyle", { displaystyle: String(name !== "tfrac"), scriptlevel: "0" }, node);
    }
    if (/^[bB]igg?[lrm]?$/.test(name)) {
      const size = `${{ big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 }[name.replace(/[lrm]$/, "")]}em`;
      return math("mo", { stretchy: "true", symmetric: "true", minsize: size, maxsize: size }, this.bracket());
    }
    switch (name) {
      case "sqrt": {
        const degree = this.optional();
        return degree ? math("mroot", {}, this.argument(), degree) : math("msqrt", {}, this.argument());
      }
      case "binom": case "dbinom": case "tbinom":
        return math("mrow", {}, math("mo", {}, "("), math("mfrac", { linethickness: "0" }, this.argument(), this.argument()), math("mo", {}, ")"));
      case "left": return this.fenced();
      case "begin": return this.environment();
      case "overset": case "stackrel": {
        const over = this.argument();
        return math("mover", {}, this.argument(), over);
      }
      case "underset": {
        const under = this.argument();
        return math("munder", {}, this.argument(), under);
      }
      case "xrightarrow": case "xleftarrow": {
        const under = this.optional();
        const arrow = math("mo", { stretchy: "true" }, name === "xrightarrow" ? "→" : "←");
        const over = math("mpadded", { width: "+0.6em", lspace: "0.3em" }, this.argument());
        return under ? math("munderover", {}, arrow, under, over) : math("mover", {}, arrow, over);
      }
      case "mathop": return limited(math("mrow", {}, this.argument()));
      case "mathbin": case "mathrel": case "mathord": case "mathopen": case "mathclose": case "mathinner": return this.argument();
      case "ket": case "bra": case "braket": {
        const [open, close] = { ket: "|⟩", bra: "⟨|", braket: "⟨⟩" }[name];
        return math("mrow", {}, math("mo", { stretchy: "false" }, open), this.argument(), math("mo", { stretchy: "false" }, close));
      }
      case "hspace": case "hspace*": {
        const width = /^-?[\d.]+(em|ex|px|pt|cm|mm|in)$/.exec(this.raw().trim());
        return math("mspace", width ? { width: width[0] } : {});
      }
      case "ce": return this.upright(chemistry(this.raw()));
      case "eqref": case "ref": return math("mtext", {}, name === "ref" ? this.raw() : `(${this.raw()})`);
      case "bmod": return math("mo", { lspace: "0.2em", rspace: "0.2em" }, "mod");
      case "pmod": return math("mrow", {}, math("mspace", { width: "1em" }), math("mo", { stretchy: "false" }, "("), math("mi", {}, "mod"), math("mspace", { width: "0.3em" }), this.argument(), math("mo", { stretchy: "false" }, ")"));
      case "not": {
        const node = this.argument();
        node.append("\u0338");
        return node;
      }
      case "phantom": return math("mphantom", {}, this.argument());
      case "color": case "textcolor": this.raw(); return name === "color" ? math("mrow", {}) : this.argument();
      case "substack":
        this.expect("{");
        return this.cells(name, "}");
      case "tag": return math("mtext", {}, `\u2003(${this.raw()})`);
      case "label": this.raw(); return math("mrow", {});
      default: throw new SyntaxError(`\\${name} is not known`);
    }
  }

  // A source of its own, with upright letters.
  upright(source) {
    return restyled(new Formula(source, this.depth).whole(), "");
  }

  whole() {
    const row = this.row();
    if (this.peek() !== undefined) throw new SyntaxError("a bracket is not open");
    return row;
  }

  fenced() {
    const open = this.bracket();
    const parts = [math("mo", { stretchy: "true", form: "prefix" }, open)];
    for (;;) {
      parts.push(this.row("\\right", "\\middle"));
      const token = this.next();
      parts.push(math("mo", { stretchy: "true", form: token === "\\right" ? "postfix" : "infix" }, this.bracket()));
      if (token === "\\right") return math("mrow", {}, ...parts);
    }
  }

  environment() {
    const name = this.raw();
    const around = TABLES[name];
    if (!Object.hasOwn(TABLES, name)) throw new SyntaxError(`the environment ${name} is not known`);
    if (name === "array") this.raw();
    const body = this.cells(name, "\\end");
    if (this.raw() !== name) throw new SyntaxError(`${name} is open`);
    const bracket = (text, form) => (text === " " ? [] : [math("mo", { stretchy: "true", form }, text)]);
    return math("mrow", {}, ...bracket(around[0], "prefix"), body, ...bracket(around[1], "postfix"));
  }

  // The rows and columns of a table, and the token that ends it.
  cells(name, end) {
    const rows = [[]];
    for (;;) {
      while (this.peek() === "\\hline") this.next();
      rows.at(-1).push(this.row("&", "\\\\", end));
      const token = this.next();
      if (token === end) break;
      if (token !== "\\\\") continue;
      if (this.peek() === "[") this.optional();
      rows.push([]);
    }
    // A break after the last row begins none.
    if (rows.length > 1 && rows.at(-1).length === 1 && !rows.at(-1)[0].firstChild) rows.pop();
    const isAligned = /^(align|split)/.test(name);
    const side = (column) => (isAligned ? (column % 2 ? "left" : "right") : name === "cases" ? "left" : "middle");
    const cell = (one, column) => math("mtd", { class: side(column) }, one);
    const options = isAligned || /^(gather|equation)/.test(name) ? { displaystyle: "true" } : {};
    return math("mtable", options, ...rows.map((row) => math("mtr", {}, ...row.map(cell))));
  }
}

// The formula as an element, or its source if it has what is not known here.
function formula(source, isBlock) {
  try {
    return math("math", { display: isBlock ? "block" : "inline", "aria-label": source }, new Formula(source).whole());
  } catch (error) {
    return element("code", { className: "source", title: error.message }, source);
  }
}
