package lab

import (
	"os"
	"path/filepath"
	"slices"
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
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	found := processes(func(_, session int, state string) bool { return session == leader && state != "Z" })
	return slices.DeleteFunc(found, func(c Child) bool { return c.Pid == leader })
}

// Children returns the processes that this one has started, also those that have ended and are not waited for.
func Children() []Child {
	return processes(func(parent, _ int, _ string) bool { return parent == os.Getpid() })
}

// processes reads lines of proc_pid_stat(5). The name is in parentheses, and may contain some.
func processes(wanted func(parent, session int, state string) bool) (all []Child) {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // The pattern is correct.
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // It has ended.
		}
		stat := string(text)
		begin, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
		fields := strings.Fields(stat[end+1:])
		parent, _ := strconv.Atoi(fields[1])
		session, _ := strconv.Atoi(fields[3])
		if wanted(parent, session, fields[0]) {
			pid, _ := strconv.Atoi(strings.TrimSpace(stat[:begin]))
			all = append(all, Child{Pid: pid, Name: stat[begin+1 : end]})
		}
	}
	return all
}
