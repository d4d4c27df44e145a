{
  "targets": [
    {
      "target_name": "tandem",
      "type": "none",
      "actions": [
        {
          "action_name": "cmake",
          "inputs": ["CMakeLists.txt"],
          "outputs": ["<(module_root_dir)/native-build/always"],
          "action": ["node", "scripts/build-native.mjs"]
        }
      ]
    }
  ]
}
