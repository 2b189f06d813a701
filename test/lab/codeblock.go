package lab

import (
	"regexp"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// CodeBlock returns the code of a document in a language that begins with a text.
func CodeBlock(t testing.TB, document, language, begins string) string {
	t.Helper()
	pattern := "(?s)```" + language + "\n(" + regexp.QuoteMeta(begins) + ".*?)```\n"
	found := regexp.MustCompile(pattern).FindSubmatch(test.Read(t, document))
	if found == nil {
		t.Fatalf("%s has no code in %q that begins with %q", document, language, begins)
	}
	return string(found[1])
}
