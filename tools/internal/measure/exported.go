package measure

import (
	"fmt"
	"strings"
)

// ExportedFile is the file that holds the agreed number of exported names of each released module.
// `make count ARGS=-update` writes it, `make verify` compares it.
const ExportedFile = "tools/exported.txt"

// ExportedCounts returns the content for ExportedFile: a line "<number> <folder>" for each released
// module, in the order given to Load.
func (t *Tree) ExportedCounts() string {
	var text strings.Builder
	for _, module := range t.modules {
		if Released(module) {
			fmt.Fprintf(&text, "%4d %s\n", len(t.Exported(module)), module)
		}
	}
	return text.String()
}
