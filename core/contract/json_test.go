package contract_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// cloudEvent is an event of v3 as encoding/json writes it.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject,omitempty"`
	Time            time.Time `json:"time,omitzero"`
	DataContentType string    `json:"datacontenttype"`
	Epoch           string    `json:"epoch,omitempty"`
	Sequence        string    `json:"sequence,omitempty"`
	TraceParent     string    `json:"traceparent,omitempty"`
	Data            data      `json:"data"`
}

type data struct {
	Owner      *objectName    `json:"owner,omitempty"`
	Watched    *objectName    `json:"watched,omitempty"`
	WatchedGVK *kind          `json:"watchedGvk,omitempty"`
	Operation  core.Operation `json:"operation,omitempty"`
	Field      core.Field     `json:"field,omitempty"`
	Generation int64          `json:"generation,omitempty"`
}

type objectName struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

type kind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

func cloudEventOf(batch *core.Batch, e *core.Numbered) cloudEvent {
	c := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: "/runtimes/" + url.PathEscape(string(batch.Source)),
		Type: "com.github.runtime-watcher.resync", DataContentType: "application/json", Epoch: batch.Epoch,
		Data: data{Owner: nameOf(e.Owner)},
	}
	if at := e.Time.UTC(); at.Year() >= 0 && at.Year() <= 9999 {
		c.Time = at
	}
	if e.Sequence > 0 {
		c.Sequence = fmt.Sprintf("%020d", e.Sequence)
	}
	if len(e.TraceParent) <= 512 && utf8.ValidString(e.TraceParent) {
		c.TraceParent = e.TraceParent
	}
	if !e.Resync {
		c.Type, c.Subject = "com.github.runtime-watcher.changed", e.Watched.String()
		c.Data.Watched, c.Data.WatchedGVK = nameOf(e.Watched), new(kind(e.WatchedGVK))
		c.Data.Operation, c.Data.Field, c.Data.Generation = e.Operation, e.Field, e.Generation
	}
	return c
}

func nameOf(name types.NamespacedName) *objectName {
	if name == (types.NamespacedName{}) {
		return nil
	}
	return new(objectName(name))
}

// checkBytes fails t unless the events in the body are as encoding/json writes them.
func checkBytes(t *testing.T, batch *core.Batch, request *contract.Request) {
	t.Helper()
	events := make([]cloudEvent, 0, len(request.Sent))
	for _, i := range request.Sent {
		events = append(events, cloudEventOf(batch, &batch.Events[i]))
	}
	want := must(json.Marshal(events))(t)
	body := request.Body
	if request.Heartbeat {
		want = want[:len(want)-1] // The heartbeat follows.
		body = body[:min(len(body), len(want))]
	}
	if !bytes.Equal(want, body) {
		t.Fatalf("the body is not as encoding/json writes it (-want +got):\n%s", cmp.Diff(string(want), string(body)))
	}
}

// Each character is written as encoding/json writes it.
func TestTextsAreEscaped(t *testing.T) {
	t.Parallel()
	batch := manyEvents(1, 0)
	texts := []string{"ä", "\u2028", "\u2029", "\U0001f600"}
	for c := range rune(utf8.RuneSelf) {
		texts = append(texts, string(c))
	}
	for _, text := range texts {
		batch.Events[0].ID, batch.Events[0].Watched.Name = text, "a"+text
		request, err := contract.V3.Encode(&batch)
		if err != nil || request.Failed != nil {
			t.Fatalf("%q: Encode fails with %v, %v", text, err, request.Failed)
		}
		checkRequest(t, &batch, &request)
	}
}
