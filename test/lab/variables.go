package lab

// IndexVariables replaces each list of variables of a container by a map, because their order has no meaning: none
// refers to another. It calls each for every variable.
func IndexVariables(value any, each func(variable map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		if list, ok := value["env"].([]any); ok {
			byName := map[string]any{}
			for _, one := range list {
				variable, _ := one.(map[string]any)
				name, _ := variable["name"].(string)
				byName[name] = variable
				each(variable)
			}

			value["env"] = byName
		}

		for _, inner := range value {
			IndexVariables(inner, each)
		}
	case []any:
		for _, inner := range value {
			IndexVariables(inner, each)
		}
	}
}
