package modules

import (
	"path"
	"strings"
)

// Root is the path of the module in the root folder.
const Root = "github.com/runtime-watcher/runtime-watcher"

// Path returns the import path of a folder of the repository. The root folder is ".".
func Path(folder string) string { return path.Join(Root, folder) }

// Folder returns the folder of an import path, if it belongs to this repository.
func Folder(imported string) (folder string, ok bool) {
	below, ok := strings.CutPrefix(imported+"/", Root+"/")
	return path.Clean(below), ok
}

// Released reports whether users import the module in a folder. They import every module, unless
// its folder is examples, test, tools, or below one of them.
func Released(folder string) bool {
	first, _, _ := strings.Cut(folder, "/")
	return first != "examples" && first != "test" && first != "tools"
}

// Skipped reports whether no module or package of the repository is in the folder.
func Skipped(folder string) bool {
	base := path.Base(folder)
	return base == "bin" || base == "testdata" || base != "." && strings.HasPrefix(base, ".")
}
