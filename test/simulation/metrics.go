package simulation

import (
	"bufio"
	"io"
	"regexp"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

var fate = regexp.MustCompile(`^runtime_watcher_agent_events_(\w+)\{manager="([^"]*)".*\} (\S+)$`)

// readAccounts reads the fates of events from the text of metrics.
func readAccounts(text io.Reader) map[core.Manager]oracle.Account {
	accounts := make(map[core.Manager]oracle.Account)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		found := fate.FindSubmatch(lines.Bytes())
		if found == nil {
			continue
		}
		value, _ := strconv.ParseFloat(string(found[3]), 64) // It is a number.
		manager := core.Manager(found[2])
		account := accounts[manager]
		account.Add(string(found[1]), int64(value))
		accounts[manager] = account
	}
	return accounts
}
