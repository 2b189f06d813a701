package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDockerfileBuildsAsMake compares the flags of both builds, and the properties of both images.
func TestDockerfileBuildsAsMake(t *testing.T) {
	docker, makefile := string(must(os.ReadFile("../../Dockerfile"))), string(must(os.ReadFile("../../Makefile")))
	command := regexp.MustCompile(`GOWORK=off CGO_ENABLED=0 .* build (.*)-X main\.version=`)
	flags := func(text string) string {
		found := command.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no build of the agent in %.200s", text)
		}
		return strings.ReplaceAll(found[1], `"`, "'")
	}
	if have, want := flags(docker), flags(makefile); have != want {
		t.Errorf("the Dockerfile builds with %q, make with %q", have, want)
	}
	for _, want := range []string{
		"USER " + nonRoot, source, `ENTRYPOINT ["/agent"]`, "FROM scratch", "/image -licenses -out /licenses", "=build /licenses /licenses",
	} {
		if !strings.Contains(docker, want) {
			t.Errorf("no %q in the Dockerfile", want)
		}
	}
}
