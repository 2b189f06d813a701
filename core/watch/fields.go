package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ParseDocument decodes the JSON of a [Document]. It refuses a field that a Watcher does not have,
// because a watch with a misspelt selector would select every object. The error names each such
// field and the most similar known field. Field names are case-sensitive, as in an API server. A
// status and the other fields that an API server adds are allowed.
//
// For an object from an API server, use [json.Unmarshal], because its definition may be newer.
func ParseDocument(text []byte) (Document, error) {
	var content any
	if err := json.Unmarshal(text, &content); err != nil {
		return Document{}, err
	}
	if err := errors.Join(unknownFields(content, documentFields(), "")...); err != nil {
		return Document{}, err
	}

	var document Document
	err := json.Unmarshal(text, &document)
	return document, err
}

// fields are the names that an object may have, and the names in nested objects. An object with nil
// may have any.
type fields map[string]fields

// documentFields returns the fields of a Watcher and of a list. A typing error in a file must not
// widen a watch silently.
func documentFields() fields {
	requirement := fields{"key": nil, "operator": nil, "values": nil}
	selector := fields{"matchLabels": nil, "matchExpressions": requirement}
	document := fields{
		"apiVersion": nil, "kind": nil, "status": nil,
		// Those of a list are among them (Kubernetes API conventions, "Metadata").
		"metadata": {
			"name": nil, "generateName": nil, "namespace": nil, "labels": nil, "annotations": nil, "uid": nil,
			"resourceVersion": nil, "generation": nil, "creationTimestamp": nil, "deletionTimestamp": nil,
			"deletionGracePeriodSeconds": nil, "finalizers": nil, "ownerReferences": nil, "managedFields": nil,
			"selfLink": nil, "clusterName": nil, "continue": nil, "remainingItemCount": nil,
		},
		"spec": {
			"manager": nil, "field": nil, "labelsToWatch": nil, "labelExpressionsToWatch": requirement,
			"resourceToWatch":   {"group": nil, "version": nil, "resource": nil, "kind": nil},
			"namespaceSelector": selector, "matchConditions": {"name": nil, "expression": nil},
			// The control plane needs these two.
			"serviceInfo": {"name": nil, "namespace": nil, "port": nil}, "gateway": {"selector": selector},
		},
	}

	document["items"] = document
	return document
}

// unknownFields returns an error for each field in content that is not known. It is sorted.
func unknownFields(content any, known fields, path string) (problems []error) {
	if known == nil {
		return nil
	}

	switch value := content.(type) {
	case []any:
		for i, element := range value {
			problems = append(problems, unknownFields(element, known, fmt.Sprintf("%s[%d]", path, i))...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			within := strings.TrimPrefix(path+"."+name, ".")
			its, isKnown := known[name]
			if !isKnown {
				problems = append(problems, fmt.Errorf("unknown field %.200q%s", within, hint(name, known)))
				continue
			}
			problems = append(problems, unknownFields(value[name], its, within)...)
		}
	}

	return problems
}

// hint names the nearest field, or where the field belongs.
func hint(name string, known fields) string {
	nearest := ""
	least := len(name)/2 + 1
	for _, other := range slices.Sorted(maps.Keys(known)) {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			nearest = other
			least = d
		}
	}

	if nearest != "" {
		return fmt.Sprintf(", want %q", nearest)
	}

	document := documentFields()
	for _, object := range []string{"spec", "metadata"} {
		if _, has := document[object][name]; has {
			return fmt.Sprintf(", want it in %s", object)
		}
	}

	return fmt.Sprintf(", want one of %q", slices.Sorted(maps.Keys(known)))
}

// maxCompared bounds the names that are compared, in bytes.
const maxCompared = 64

// distance returns how many letters must be inserted, removed or replaced in a to get b
// (Levenshtein).
func distance(a, b string) int {
	if max(len(a), len(b)) > maxCompared {
		return maxCompared
	}

	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, replaced)
		}
	}

	return row[len(b)]
}
