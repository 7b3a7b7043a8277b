#!/bin/sh
# Writes the libraries of the page, from the versions named here, which npm fetches: marked (Markdown
# to tokens) and highlight.js (source code to tokens). Run it after a change of a version or of the
# languages. `sh make.sh --check` only compares. It needs node and npm; status 3: npm cannot install.
set -eu
marked=18.2.1
highlight=11.12.0
esbuild=0.28.2
languages="bash cpp diff go ini java json python rust sql typescript xml yaml"

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund --ignore-scripts "marked@$marked" "highlight.js@$highlight" "esbuild@$esbuild" || exit 3

echo 'export { Marked } from "marked";' >marked-entry.js
{
  echo 'import hljs from "highlight.js/lib/core";'
  for language in $languages; do
    echo "import $language from \"highlight.js/lib/languages/$language\";"
    echo "hljs.registerLanguage(\"$language\", $language);"
  done
  # The larger language of two also reads the smaller one.
  echo 'hljs.registerAliases(["js", "jsx", "mjs", "javascript"], { languageName: "typescript" });'
  echo 'hljs.registerAliases(["c", "h"], { languageName: "cpp" });'
  echo 'export default hljs;'
} >highlight-entry.js

# In a script element of HTML, "<!--" begins a comment. Both libraries have it only within
# expressions and texts, where \x3C means the same.
bundle() {
  npx esbuild "$1-entry.js" --bundle --minify --charset=utf8 --format=iife --global-name="$2" --legal-comments=none --log-level=error |
    sed 's/<!--/\\x3C!--/g'
}
{
  echo "// marked $marked, under the MIT licence (LICENSE-marked). Written by make.sh."
  bundle marked markdownLibrary
} >marked.js
{
  echo "// highlight.js $highlight, under the BSD 3-clause licence (LICENSE-highlight). Written by make.sh."
  bundle highlight highlightLibrary
} >highlight.js
cp node_modules/marked/LICENSE* LICENSE-marked
cp node_modules/highlight.js/LICENSE LICENSE-highlight

for file in marked.js highlight.js LICENSE-marked LICENSE-highlight; do
  if [ "${1:-}" = --check ]; then
    cmp "$file" "$here/$file"
  else
    cp "$file" "$here/$file"
  fi
done
