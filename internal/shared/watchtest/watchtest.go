// Package watchtest finds the step that drops a field of a watch. It sets fields by reflection, so
// a new field is tested in each step without a change here.
package watchtest

import (
	"reflect"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// variants returns two values for each field that cannot have the texts "one" and "two".
func variants() map[string][2]string {
	return map[string][2]string{
		".Resource.Group":                   {"example.com", "other.example.com"},
		".Resource.Version":                 {"v1", "v2"},
		".Resource.Resource":                {"widgets", "gadgets"},
		".Kind":                             {"Widget", "Gadget"},
		".Selector.Requirements[].Operator": {"In", "NotIn"},
		".NamespaceSelector.Requirements[].Operator": {"In", "NotIn"},
		".Conditions[].Expression":                   {"true", "false"},
		".Field":                                     {"spec", "status"},
	}
}

// Watches returns a valid watch with all fields set, and for each field, by its path, a valid watch
// that differs from the first in this field only. Other texts are "one" and "two", and the labels
// of selectors have the key "key".
func Watches() (whole watch.Watch, changed map[string]watch.Watch) {
	changed = make(map[string]watch.Watch)
	for _, path := range fill(reflect.ValueOf(&whole).Elem(), "", "") {
		var w watch.Watch
		fill(reflect.ValueOf(&w).Elem(), "", path)
		changed[path] = w
	}
	return whole, changed
}

func fill(v reflect.Value, path, other string) (paths []string) {
	value := [2]string{"one", "two"}
	if own, ok := variants()[path]; ok {
		value = own
	}

	text := value[0]
	if path == other {
		text = value[1]
	}

	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			paths = append(paths, fill(v.Field(i), path+"."+v.Type().Field(i).Name, other)...)
		}
		return paths
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return fill(v.Index(0), path+"[]", other)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": text}))
	case reflect.String:
		v.SetString(text)
	default:
		panic("watchtest: fill cannot set a " + v.Kind().String())
	}

	return []string{path}
}
