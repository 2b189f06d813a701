package today

import (
	"encoding/base64"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// objects reads YAML documents. It panics if one of this package is broken.
func objects(text string) (all []*unstructured.Unstructured) {
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			panic(fmt.Sprintf("YAML: %v\n%s", err, document))
		}
		all = append(all, object)
	}
	return all
}

// encoded is the data of a Secret, as it is in JSON.
func encoded(data map[string][]byte) map[string]any {
	all := map[string]any{}
	for key, value := range data {
		all[key] = base64.StdEncoding.EncodeToString(value)
	}
	return all
}
