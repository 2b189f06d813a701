package lab

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Child is a running process.
type Child struct {
	Pid  int
	Name string
}

// Session returns the running processes of a session, except its leader: all that a process has
// started that began with Setsid, however they ended up.
func Session(t testing.TB, leader int) (children []Child) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Skip("needs /proc")
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // It has ended.
		}
		child, state, session := parseStat(string(stat))
		if session == leader && child.Pid != leader && state != "Z" {
			children = append(children, child)
		}
	}
	return children
}

// parseStat reads a line of proc_pid_stat(5). The name is in parentheses, and may contain some.
func parseStat(stat string) (c Child, state string, session int) {
	begin, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	fields := strings.Fields(stat[end+1:])
	c.Name = stat[begin+1 : end]
	c.Pid, _ = strconv.Atoi(strings.TrimSpace(stat[:begin]))
	session, _ = strconv.Atoi(fields[3])
	return c, fields[0], session
}
