package check

import (
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/managersfile"
)

type managers []core.Manager

func (m managers) String() string {
	words := make([]string, 0, len(m))
	for _, manager := range m {
		words = append(words, string(manager))
	}
	return strings.Join(words, " ")
}

// managers checks MANAGERS and MANAGERS_FILE.
func (c *checker) managers() {
	c.known = slices.Clone(c.opts.Managers)
	if path := c.opts.ManagersFile; path != "" && !c.addFile(path) {
		return
	}
	if len(c.known) == 0 {
		c.warn("managers", finding{
			"none: the agent learns managers from their first review", "MANAGERS or MANAGERS_FILE",
			"without them no start leads to a resync, and any name is accepted",
		})
		return
	}
	c.ok("managers", "%v", c.known)
}

func (c *checker) addFile(path string) bool {
	listed, err := managersfile.Others(c.known, path)
	if err != nil {
		c.fail("MANAGERS_FILE", finding{err.Error(), "one name per line", "correct the ConfigMap"})
		return false
	}
	c.known = append(c.known, listed...)
	return true
}
